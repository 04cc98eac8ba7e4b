"""What importing costs and touches."""

from __future__ import annotations

import ast
import json
import pathlib
import subprocess
import sys

import pytest

import zephon_jax

PACKAGE = pathlib.Path(zephon_jax.__file__).parent
LAYERS = [
    ["_xp"],
    ["weights", "keys", "token_ratios"],
    ["quota", "swrr", "lattice", "permutation", "cursor", "lanes", "backend"],
    ["allocation", "costs", "virtual_time"],
    ["reading", "chunk", "state", "codec", "places", "source", "eras", "knobs", "relane"],
    ["locate", "run_index", "lane_states"],
    ["mixture_run", "static_mixture"],
    ["run_rows"],
    ["simulation", "simulate_words", "simulate", "progress", "seen", "audit"],
