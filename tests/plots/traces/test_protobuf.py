"""Columns of messages are the bytes that Google's own encoder writes."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto
from xstage.plots.traces import protobuf as pb

VALUE = st.one_of(st.integers(0, 300), st.integers(0, 2**63 - 1))


@given(st.lists(st.tuples(VALUE, st.booleans(), st.floats(allow_nan=False)), min_size=1, max_size=20))
def test_messages_in_columns_are_the_messages_one_by_one(rows):
    whole, present, real = (np.array(column) for column in zip(*rows, strict=True))
    inner = pb.joined(pb.integer(1, whole), pb.integer(4, whole, present), pb.fixed64(5, real, ~present))
    written = pb.to_bytes(pb.message(4, inner, present))

    expected = proto.TrackEvent()
    for value, there, _ in rows:
        if there:
            expected.debug_annotations.add(name_iid=value, int_value=value)
    assert written == expected.SerializeToString()


@given(st.text(), VALUE)
def test_single_fields_are_read_back(text, value):
    track = proto.TrackDescriptor.FromString(pb.whole(1, value) + pb.text(2, text))
    assert (track.uuid, track.name) == (value, text)


def test_the_largest_unsigned_number_takes_ten_bytes():
    largest = 2**64 - 1
    written = pb.to_bytes(pb.integer(1, np.array([largest], dtype=np.uint64)))
    assert proto.TrackDescriptor.FromString(written).uuid == largest
    assert len(written) == 1 + 10
