"""Problems with a known answer: one file a family, and a registry of them all.

A problem is a function of plain arguments that returns a `TabularMDP`, a `FunctionMDP` or a
`CompiledSimulator`, and an entry in `registry.py`.
"""
