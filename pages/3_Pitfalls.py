"""Pitfalls: every kind of fault that people reported, the wrong loop beside the right one, both run when asked."""

import streamlit as st

from accum_ui import pitfalls

GROUP = "See"

st.title("How does accumulation go wrong?", anchor=False)
st.markdown(
    "Each card is a kind of fault that people reported in public: what they saw, a loop that has it and the loop that "
    "has not. Open one and run both, or take either with you."
)
pitfalls.show()
