"""Causal language models of transformers, whole or with adapters, on text of the user's own.

``pretrained`` reads model and tokenizer from their ``places``, ``tokens`` makes samples of what was written, ``rows``
lays them out padded or packed, ``model`` is what a training passes them through, and ``memory`` and ``duration`` say
what that takes.
"""
