"""The page Language model: fine-tuning by micro-batches, live, with samples, costs and the advice not to accumulate.

Reading order: ``choice`` (settings and address), ``measured`` (what stored runs say), ``words`` and ``tables``, then
``state``, ``queue`` and ``page``, which know Streamlit.
"""
