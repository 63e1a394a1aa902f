"""One file a network; each gives ``TITLE`` and ``build(in_channels, num_classes)`` with BatchNorm in it.

``convert_norms`` puts another norm in its place. The children of the network are its layers' names on the charts.
"""
