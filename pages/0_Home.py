"""Home: the question, the newest answer with its provenance, what others published, and the way on."""

import streamlit as st

st.title("When is N × micro-batch the same as one large batch?", anchor=False)
st.markdown(
    "Gradient accumulation makes N passes on small micro-batches and then one update: the memory of one micro-batch, "
    "the update of a large batch. It is exact where the loss is divided rightly and no layer looks across samples. "
    "BatchNorm looks across samples. This is what that does to a segmentation network:"
)

# Only now: the question is painted while what the answer stands on is imported.
from accum_ui import home  # noqa: E402

home.show("segmentation_batch_size")
