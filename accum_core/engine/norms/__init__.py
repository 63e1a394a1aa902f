"""One file a layer kind; ``accum_core.engine.normalization`` finds and uses them.

Each file gives literal constants (read without torch by ``accum_core.catalogue``):

- ``TITLE``: the name to show; ``SUMMARY``: one clause on what it looks at
- ``ORDER``: place in lists; ``BATCH_INDEPENDENT``: whether a sample's output is independent of the others in training
  mode (in evaluation mode it is for every kind)
- ``EXACT_UNDER_ACCUMULATION``, if it is so although samples are not independent
- ``OPTIONS``, if any: option of ``build`` -> field of ``RunConfig`` that sets it
- ``LOST``, if anything: what a trained BatchNorm loses on the way to this kind, of ``"running statistics"`` and
  ``"function in evaluation mode"``; the affine parameters always move over
- ``ADDS``, if any: names of the parameters that a layer of this kind has besides ``weight`` and ``bias``
- ``REMEDY``, if the usual one does not fit: what to use instead where the layer cannot work

and three functions: ``build(source, **options)`` makes the layer that stands in for ``source``, ``owns(module)`` says
whether a layer is of this kind, and ``failure(module, shape, training)`` says in one clause why it cannot work on
an input of that shape in training (or evaluation) mode, or None. A model is converted to the kind that it has at every
change of N, so ``build`` passes the parameters named in ``ADDS`` on from a source of its own kind.

A kind that concerns other layers than the norms gives two functions more: ``prepare(model)`` changes them once the
norms are exchanged, and ``restore(model)`` undoes that; it is called at the beginning of every conversion, to any kind,
and changes nothing where there is nothing to undo. Both keep Parameter objects and names.
"""
