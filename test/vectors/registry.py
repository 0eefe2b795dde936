"""Messages that Confluent's own serializers have framed, for package registry.

Run: python registry.py > ../../registry/testdata/confluent.json
"""
import base64
import json
import uuid
from importlib.metadata import version

import attrs
from confluent_kafka.schema_registry import (
    SchemaRegistryClient,
    header_schema_id_serializer,
    prefix_schema_id_serializer,
)
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import duration_pb2

AVRO = json.dumps({
    "type": "record", "name": "Order", "namespace": "shop",
    "fields": [{"name": "sku", "type": "string"}, {"name": "qty", "type": "int"}],
})
JSON_SCHEMA = json.dumps({
    "$schema": "http://json-schema.org/draft-07/schema#", "title": "Order", "type": "object",
    "properties": {"sku": {"type": "string"}, "qty": {"type": "integer"}},
})
ORDER = {"sku": "tea", "qty": 3}


class OneRegistry:
    """Gives each schema the id 7 and the same GUID, and needs no server."""

    guid = str(uuid.UUID("89791762-2336-4186-9674-299b90a802e2"))

    def __init__(self):
        self.client = SchemaRegistryClient.new_client({"url": "mock://vectors"})
        self.registered = None
        register = self.client.register_schema_full_response

        def fixed(subject, schema, *args, **kwargs):
            found = register(subject, schema, *args, **kwargs)
            self.registered = schema
            return attrs.evolve(found, schema_id=7, guid=self.guid)

        self.client.register_schema_full_response = fixed


def vector(kind, where, make, value):
    registry = OneRegistry()
    framing = {"header": header_schema_id_serializer, "prefix": prefix_schema_id_serializer}[where]
    serializer = make(registry.client, {"auto.register.schemas": True, "schema.id.serializer": framing})
    headers = []
    written = serializer(value, SerializationContext("orders", MessageField.VALUE, headers))
    return {
        "type": kind, "where": where, "id": 7, "guid": registry.guid,
        "schema": registry.registered.schema_str if registry.registered else None,
        "headers": {name: base64.b64encode(raw).decode() for name, raw in headers},
        "value": base64.b64encode(written).decode(),
    }


def main():
    vectors = []
    for where in "header", "prefix":
        vectors.append(vector("AVRO", where, lambda c, conf: AvroSerializer(c, AVRO, conf=conf), ORDER))
        vectors.append(vector("JSON", where, lambda c, conf: JSONSerializer(JSON_SCHEMA, c, conf=conf), ORDER))
        vectors.append(vector(
            "PROTOBUF", where,
            lambda c, conf: ProtobufSerializer(duration_pb2.Duration, c, {**conf, "use.deprecated.format": False}),
            duration_pb2.Duration(seconds=5, nanos=9)))
    print(json.dumps({
        "library": "confluent-kafka", "version": version("confluent-kafka"), "registry": "PyPI",
        "made_by": "test/vectors/registry.py", "vectors": vectors,
    }, indent=1))


main()
