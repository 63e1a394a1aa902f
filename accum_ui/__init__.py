"""What people see. Reading order:

1. ``settings``    the address of the page and the run's configuration, one made from the other
2. ``run_view``    a run's records as growing columns, shared by every browser that looks
3. ``findings``, ``words``, ``readings``, ``about_run``   a run's numbers, and the sentences that follow from them
4. ``panels``      which charts there are and which columns they draw
5. ``payload``, ``api``   the route that the charts are extended from
6. ``live``        the component that draws them
7. ``lab``, ``controls``, ``loop``   the Lab page's state, its controls and the script to take away
8. ``navigation``, ``main``, ``resources``   the frame of every page and what the pages share

``run_view``, ``words`` and ``panels`` know nothing of Streamlit; nothing here imports torch.
"""
