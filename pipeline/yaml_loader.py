"""Strict YAML: reads plain values from a text.

In:    str
Out:   plain values, or a ConfigError with the reason
Never: files, Python objects

YAML itself silently keeps the last of two equal keys; here they are an error.
"""

from typing import Any

import yaml

from pipeline.errors import ConfigError


def parse_yaml(text: str) -> Any:
    """Returns the plain values of a YAML text; builds no Python objects.

    Raises:
        ConfigError: not YAML, or a key that appears twice.
    """
    try:
        return yaml.load(text, Loader=_UniqueKeyLoader)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"not YAML: {error}") from error


class _UniqueKeyLoader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in keys:
                raise ConfigError(f"line {key_node.start_mark.line + 1}: the key {key} appears twice")
            keys.add(key)
        return super().construct_mapping(node, deep)
