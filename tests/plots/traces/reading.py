"""A .pftrace read back with Perfetto's own messages: slices with their depth, instants, counters, by track."""

from dataclasses import dataclass, field

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4


@dataclass
class Slice:
    name: str
    category: str
    start: int
    depth: int
    annotations: dict
    flows: list
    end: int | None = None
    within: "Slice | None" = None


@dataclass
class Track:
    name: str
    path: tuple
    slices: list = field(default_factory=list)
    instants: list = field(default_factory=list)
    values: list = field(default_factory=list)


def read(content):
    """Tracks by path of names, such as ('GPU 0', 'SM 1', 'mma'). Checks what a reader relies on: names before they are
    used, tracks before their events, one sequence, times that never go back, slices that end in the order they nest."""
    trace = proto.Trace.FromString(content)
    names, described, tracks, open_slices = {}, {}, {}, {}
    latest = 0
    for number, packet in enumerate(trace.packet):
        assert packet.trusted_packet_sequence_id == 1
        assert packet.sequence_flags == (1 if number == 0 else 2 if packet.HasField("track_event") else 0)
        for table in ("event_names", "event_categories", "debug_annotation_names"):
            names[table] = names.get(table, {}) | {e.iid: e.name for e in getattr(packet.interned_data, table)}
        strings = packet.interned_data.debug_annotation_string_values
        names["strings"] = names.get("strings", {}) | {e.iid: e.str.decode() for e in strings}
        if packet.HasField("track_descriptor"):
            track = packet.track_descriptor
            assert track.uuid not in described
            parent = described[track.parent_uuid].path if track.parent_uuid else ()
            described[track.uuid] = Track(track.name, (*parent, track.name))
            assert described[track.uuid].path not in tracks, "two tracks of one name cannot be told apart"
            tracks[described[track.uuid].path] = described[track.uuid]
        if packet.HasField("track_event"):
            assert packet.timestamp >= latest
            latest = packet.timestamp
            event = packet.track_event
            _add(event, packet.timestamp, described[event.track_uuid], open_slices, names)
    assert not any(open_slices.values()), "every slice ends"
    return tracks


def _add(event, time, track, open_slices, names):
    stack = open_slices.setdefault(event.track_uuid, [])
    annotations = {names["debug_annotation_names"][a.name_iid]: _value(a, names) for a in event.debug_annotations}
    name = names["event_names"].get(event.name_iid, "")
    if event.type == BEGIN:
        category = names["event_categories"][event.category_iids[0]] if event.category_iids else ""
        begun = Slice(name, category, time, len(stack), annotations, list(event.flow_ids), within=(stack or [None])[-1])
        stack.append(begun)
        track.slices.append(begun)
    elif event.type == END:
        stack.pop().end = time
    elif event.type == INSTANT:
        track.instants.append((time, name, annotations, list(event.terminating_flow_ids)))
    elif event.type == COUNTER:
        track.values.append((time, event.double_counter_value))


def _value(annotation, names):
    which = annotation.WhichOneof("value")
    value = getattr(annotation, which)
    return names["strings"][value] if which == "string_value_iid" else value
