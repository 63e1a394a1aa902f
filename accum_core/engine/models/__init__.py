"""One file a network; each gives ``TITLE`` and ``build(in_channels, num_classes)`` with BatchNorm in it.

One that reads tokens has ``build(vocabulary, context)`` instead, and a norm of its own.

``convert_norms`` puts another norm in its place. The children of the network are its layers' names on the charts. One
whose parts learn at different rates says so in ``rate_multipliers`` (``accum_core.engine.parameter_groups``).
"""
