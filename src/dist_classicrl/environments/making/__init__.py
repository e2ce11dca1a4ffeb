"""What models are made from: arrays, dictionaries, Gymnasium's toy texts, chance."""
