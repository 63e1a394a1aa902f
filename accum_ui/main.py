"""The frame of every page: the script that ``app.py`` runs for each visitor."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import streamlit as st

from accum_ui.navigation import PAGES, grouped, page_files

STYLE: Final = Path(__file__).with_name("main.css")


def frame() -> None:
    """Name, navigation and the page that the address asks for."""
    st.set_page_config(layout="wide", initial_sidebar_state=240)
    st.html(STYLE)
    st.logo(PAGES.parent / "static" / "logo.svg", size="large")
    pages = {
        group: [
            st.Page(file.path, title=file.title, url_path=file.address, default=file.group == "") for file in members
        ]
        for group, members in grouped(page_files()).items()
    }
    st.navigation(pages).run()


frame()
