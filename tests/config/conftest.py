"""Assertions of the helper module say what they compared, as those of tests do."""

import pytest

pytest.register_assert_rewrite("tests.config.mistakes")
