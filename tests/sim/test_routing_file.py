"""Facts about recorded routings: the same routing from every format, and what is wrong with a file that is refused."""

import numpy as np
import pandas as pd
import pytest
from xstage.sim.errors import InputError
from xstage.sim.routing import balanced
from xstage.sim.routing_file import recorded


@pytest.fixture
def topk():
    return balanced(2, 3, 2, 8, np.random.default_rng(0)).topk


def table(topk, *, rank=True):
    flat = pd.DataFrame(topk.reshape(-1, topk.shape[2]), columns=[f"expert_{i}" for i in range(topk.shape[2])])
    if rank:
        flat.insert(0, "rank", np.repeat(np.arange(topk.shape[0]), topk.shape[1]))
    return flat


def write(path, text):
    path.write_text(text)
    return path


class TestFormats:
    def test_npy_with_ranks(self, topk, tmp_path):
        np.save(tmp_path / "r.npy", topk.astype(np.int64))
        assert np.array_equal(recorded(tmp_path / "r.npy", 8).topk, topk)

    def test_npy_cut_into_ranks(self, topk, tmp_path):
        np.save(tmp_path / "r.npy", topk.reshape(6, 2))
        assert np.array_equal(recorded(tmp_path / "r.npy", 8, n_ranks=2).topk, topk)

    @pytest.mark.parametrize("rank", [True, False])
    def test_csv(self, topk, tmp_path, rank):
        table(topk, rank=rank).to_csv(tmp_path / "r.csv", index=False)
        assert np.array_equal(recorded(tmp_path / "r.csv", 8, n_ranks=2).topk, topk)

    @pytest.mark.parametrize("rank", [True, False])
    def test_parquet(self, topk, tmp_path, rank):
        table(topk, rank=rank).to_parquet(tmp_path / "r.parquet")
        assert np.array_equal(recorded(str(tmp_path / "r.parquet"), 8, n_ranks=2).topk, topk)

    def test_ranks_may_be_mixed_and_unequal(self, tmp_path):
        path = write(tmp_path / "r.csv", "rank,expert_0\n1,5\n0,1\n1,6\n1,7\n0,2\n")
        assert recorded(path, 8).topk[..., 0].tolist() == [[1, 2, -1], [5, 6, 7]]

    def test_a_rank_without_tokens_needs_the_number_of_ranks(self, tmp_path):
        path = write(tmp_path / "r.csv", "rank,expert_0\n0,5\n2,1\n")
        assert recorded(path, 8, n_ranks=4).topk[..., 0].tolist() == [[5], [-1], [1], [-1]]
        with pytest.raises(InputError, match=r"rank = 2: .*give n_ranks if some ranks have no tokens"):
            recorded(path, 8)

    def test_no_tokens_at_all(self, tmp_path):
        np.save(tmp_path / "r.npy", np.empty((2, 0, 4), dtype=np.int32))
        assert recorded(tmp_path / "r.npy", 8).topk.shape == (2, 0, 4)


class TestRefusals:
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "cannot be read"),
            ("a,b\n1,2\n", "its columns are a, b, not"),
            ("expert_0,expert_2\n1,2\n", "its columns are"),
            ("rank\n1\n", "its columns are rank"),
            ("rank,expert_0\n0,1\n0,x\n", "column expert_0 .*first in data row 2"),
            ("rank,expert_0\n0,1\n0,\n", "column expert_0 .*first in data row 2"),
            ("rank,expert_0\n0,1.5\n", "column expert_0 .*first in data row 1"),
            ("rank,expert_0\n-1,1\n", "rank = -1"),
            ("rank,expert_0\n0,8\n", r"topk\[0, 0, 0\] = 8"),
            ("rank,expert_0,expert_1\n0,3,3\n", "names an expert twice"),
            ("expert_0\n1\n2\n3\n", "n_ranks: tokens must divide evenly"),
        ],
    )
    def test_a_bad_table(self, text, message, tmp_path):
        path = write(tmp_path / "r.csv", text)
        with pytest.raises(InputError, match=message) as error:
            recorded(path, 8)
        assert error.value.file == str(path)

    @pytest.mark.parametrize(
        ("array", "n_ranks", "message"),
        [
            (np.zeros((2, 3, 1)), None, "whole numbers"),
            (np.zeros((2, 3, 1), dtype=np.int32), 4, r"n_ranks = 4: .*allowed: 2"),
            (np.zeros((6, 1), dtype=np.int32), 4, "a divisor of 6"),
            (np.zeros(6, dtype=np.int32), 2, "wrong shape"),
            (np.zeros((6, 1), dtype=np.int32), 0, "n_ranks = 0"),
        ],
    )
    def test_a_bad_array(self, array, n_ranks, message, tmp_path):
        np.save(tmp_path / "r.npy", array)
        with pytest.raises(InputError, match=message):
            recorded(tmp_path / "r.npy", 8, n_ranks=n_ranks)

    def test_pickled_objects_are_not_loaded(self, tmp_path):
        np.save(tmp_path / "r.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
        with pytest.raises(InputError, match="cannot be read"):
            recorded(tmp_path / "r.npy", 8)

    @pytest.mark.parametrize("name", ["r.npy", "r.csv", "r.parquet"])
    def test_a_file_that_is_not_there_or_not_what_it_says(self, name, tmp_path):
        with pytest.raises(InputError, match="cannot be read"):
            recorded(tmp_path / name, 8)
        (tmp_path / name).write_bytes(b"\x00\x93 no such format")
        with pytest.raises(InputError, match=name):
            recorded(tmp_path / name, 8)

    def test_an_unknown_format(self, tmp_path):
        with pytest.raises(InputError, match=r"allowed: \.npy, \.parquet, \.csv"):
            recorded(tmp_path / "r.json", 8)
