"""Gymnasium's Blackjack: its outcomes as arrays, and the game as Gymnasium shows it, compiled."""
