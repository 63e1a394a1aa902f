"""What people see. Reading order:

1. ``settings``    the address of the page and the run's configuration, one made from the other
2. ``run_view``    a run's records as growing columns, shared by every browser that looks
3. ``findings``, ``words``, ``readings``, ``about_run``   a run's numbers, and the sentences that follow from them
4. ``panels``      which charts there are and which columns they draw
5. ``payload``, ``api``   the route that the charts are extended from
6. ``live``, ``maps``   the component that draws them, and the pictures of the display samples
7. ``lab``, ``controls``   the Lab page's state and its controls
8. ``recipe``, ``loop``   the loop of the present settings as a script, and its place on the page
9. ``results``, ``figures``, ``home``   committed results, the plotly figures made of them, and the first page
10. ``loss_scaling`` with ``scaling_controls``, ``scaling_window``, ``scaling_address``, ``scaling_figures``,
    ``scaling_words``, ``scaling_numbers`` and ``frameworks``   the page that divides a window in every way
11. ``pitfalls``, ``pitfalls_state``   the page of loops that go wrong; ``history``   Back and Forward on both
12. ``normalisation``, ``reproduce``   the pages on normalising layers and on papers, each with its own reading order
13. ``navigation``, ``main``, ``resources``   the frame of every page and what the pages share

``run_view``, ``words``, ``panels``, ``recipe``, ``results`` and ``figures`` know nothing of Streamlit; nothing here
imports torch.
"""
