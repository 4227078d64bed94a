"""Model backends: each file turns one way of reaching a language model into `harness.model.Model`.

Every heavy library is imported when a backend is built, never with this package: a command that needs no model
pays for none.
"""
