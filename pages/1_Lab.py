"""Lab: one run beside its reference, live, with the loop that makes it."""

import streamlit as st

from accum_core.errors import LabError
from accum_ui import controls, lab, live, loop, resources, words

GROUP = "See"

try:
    store = resources.store()
    shown = lab.open_page(store)
except LabError as error:
    st.title("The Lab")
    st.error(str(error), icon=":material/error:")
    st.stop()

st.title(words.question(shown.asked), anchor=False)
if shown.run:
    live.answer(shown.run)
for sentence in shown.refusals:
    st.error(sentence, icon=":material/error:")
controls.bar(store, shown)
controls.about(store, shown)
if shown.run:
    live.charts(shown.run)
else:
    st.info("The store holds no run yet: press Run, and the curves appear with the first update.")
loop.show(store, shown.config or shown.base, shown.run)
lab.remember(shown)
