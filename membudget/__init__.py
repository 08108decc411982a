"""membudget: the memory a language model needs to serve people, predicted and proven."""

__version__ = "0.1.0"
