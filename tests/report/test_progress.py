"""A bar on a terminal, silence anywhere else."""

import io
import logging
import sys

import pytest

from jaxdp import report


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_on_a_terminal_there_is_a_bar_and_it_goes_away(monkeypatch):
    pytest.importorskip("tqdm")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert list(report.progress(iter("abc"), "spelling", total=3)) == ["a", "b", "c"]
    printed = terminal.getvalue()
    assert "spelling" in printed
    assert "0/3" in printed
    assert printed.endswith("\r")


def test_in_a_pipe_nothing_is_printed(capsys):
    assert list(report.progress([1, 2], "counting")) == [1, 2]
    assert capsys.readouterr() == ("", "")


def test_without_tqdm_the_items_come_all_the_same(monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    items = [1, 2]
    assert report.progress(items, "counting") is items


def test_the_library_adds_no_handler_to_anybody_s_log():
    handlers = logging.getLogger("jaxdp").handlers
    assert all(isinstance(handler, logging.NullHandler) for handler in handlers)
