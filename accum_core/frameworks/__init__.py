"""One file a framework, each of which trains the same tasks with that framework's own loop (``contract``).

These files import torch and their framework when they are imported, so only the processes of ``accum_core.conformance``
import them; what there is can be read from their constants without that.
"""
