"""``pb_utils.ModelConfig``: the configuration that ``auto_complete_config`` completes.

Rules and error texts follow Triton's Python backend; errors are ValueErrors, as there.
"""

from __future__ import annotations

from typing import Any, TypeAlias

#: The configuration, or a part of it, as `json.loads` returns it.
ConfigDict: TypeAlias = dict[str, Any]


class ModelConfig:
    """A model configuration to complete.

    Parameters
    ----------
    model_config : dict
        In the form of the model configuration endpoint.
    """

    def __init__(self, model_config: ConfigDict) -> None:
        self._model_config = model_config

    def as_dict(self) -> ConfigDict:
        """Return the current configuration, which must not be modified."""
        return self._model_config

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Set ``max_batch_size``; it can only be increased."""
        configured = self._model_config["max_batch_size"]
        if configured > max_batch_size:
            raise ValueError(
                f"configuration specified max_batch_size {configured}, but in auto-complete-config function "
                f"for model '{self._name}' specified max_batch_size {max_batch_size}"
            )
        self._model_config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        """Enable dynamic batching, unless it is configured."""
        for scheduler in ("sequence_batching", "ensemble_scheduling"):
            if scheduler in self._model_config:
                raise ValueError(
                    f"Configuration specified scheduling_choice as '{scheduler}', but auto-complete-config "
                    f"function for model '{self._name}' tries to set scheduling_choice as 'dynamic_batching'"
                )
        self._model_config.setdefault("dynamic_batching", {})

    def add_input(self, input: ConfigDict) -> None:
        """Add or complete an input: ``{name, data_type, dims[, optional]}``."""
        self._add("input", input, "name", "data_type", "dims", "optional")

    def add_output(self, output: ConfigDict) -> None:
        """Add or complete an output: ``{name, data_type, dims}``."""
        self._add("output", output, "name", "data_type", "dims")

    def set_model_transaction_policy(self, transaction_policy_dict: ConfigDict) -> None:
        """Set ``{'decoupled': bool}``; a configured value cannot be changed."""
        for key in transaction_policy_dict.keys():  # noqa: SIM118 - raises Triton's error if it is not a dict
            if key != "decoupled":
                raise ValueError(
                    "model transaction property in auto-complete-config function for model "
                    f"'{self._name}' contains property other than 'decoupled'."
                )
        policy = self._model_config.setdefault("model_transaction_policy", {})
        configured = policy.get("decoupled", transaction_policy_dict.get("decoupled"))
        if configured != transaction_policy_dict.get("decoupled", configured):
            raise ValueError(
                f"trying to change decoupled property in auto-complete-config for model '{self._name}', "
                f"which is already set to '{configured}'."
            )
        policy.update(transaction_policy_dict)

    @property
    def _name(self) -> str:
        return str(self._model_config["name"])

    def _add(self, kind: str, tensor: ConfigDict, *allowed: str) -> None:
        where = f"in auto-complete-config function for model '{self._name}'"
        # Names are concatenated, so that a name that is not a string raises the same TypeError as on Triton.
        for key in tensor:
            if key not in allowed:
                listed = ", ".join(f"'{name}'" for name in allowed[:-1]) + f" and '{allowed[-1]}'"
                raise ValueError(kind + " '" + tensor["name"] + f"' {where} contains property other than {listed}.")
        if "name" not in tensor:
            raise ValueError(f"{kind} {where} is missing 'name' property.")
        for required in ("data_type", "dims"):
            if required not in tensor:
                raise ValueError(kind + " '" + tensor["name"] + f"' {where} is missing '{required}' property.")
        for configured in self._model_config[kind]:
            if configured["name"] == tensor["name"]:
                self._check_same(kind, configured, tensor)
                # The completed properties win only where the configuration has none: `_check_same` has refused every
                # difference.
                configured.update(tensor)
                return
        self._model_config[kind].append(tensor)

    def _check_same(self, kind: str, configured: ConfigDict, tensor: ConfigDict) -> None:
        name = tensor["name"]
        data_type = configured.get("data_type", "TYPE_INVALID")
        if data_type not in ("TYPE_INVALID", tensor["data_type"]):
            raise ValueError(
                f"unable to load model '{self._name}', configuration expects datatype {data_type} for {kind} "
                "'" + name + "', model provides " + tensor["data_type"]
            )
        for property in ("dims", "optional"):
            value = configured.get(property)
            expected = tensor.get(property, value)
            # Empty dims and an absent property count as "not configured", as in Triton's own helper.
            if value not in ([], None) and value != expected:
                raise ValueError(
                    f"model '{self._name}', tensor '{name}': the model expects {property} {expected} but the "
                    f"model configuration specifies {property} {value}"
                )
