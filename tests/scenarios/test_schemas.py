"""The JSON schemas that editors and checkers get: every key of every kind of file, each with its meaning."""

from xstage.scenarios.schema import Scenario
from xstage.scenarios.schemas import descriptions, properties, schemas
from xstage.scenarios.study import Study
from xstage.scenarios.workloads import WORKLOADS
from xstage.sim.machine import Machine


def test_the_schemas_describe_every_kind_and_key():
    found = schemas()
    for kind, model in (("scenario", Scenario), ("study", Study), ("machine", Machine)):
        assert set(model.model_fields) == set(found[kind]["properties"])
        assert found[kind]["additionalProperties"] is False
    scenario = found["scenario"]
    assert set(scenario["properties"]["workload"]["discriminator"]["mapping"]) == set(WORKLOADS)
    assert scenario["$defs"]["BurstTrainWorkload"]["properties"]["burst"]["type"] == "string"


def test_every_key_says_what_it_means():
    missing = {
        f"{model}.{key}"
        for schema in schemas().values()
        for model, key, value in properties(schema)
        if not value.get("description", "").endswith(".")
    }
    assert not missing, f"scenarios/descriptions.yaml lacks {sorted(missing)}"


def test_every_description_is_of_a_key_that_there_is():
    known = {
        name
        for schema in schemas().values()
        for model, key, _ in properties(schema)
        for name in (key, f"{model}.{key}")
    }
    assert not descriptions().keys() - known
