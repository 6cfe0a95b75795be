"""A division of a shortened joint graph (`firebrick.ir.graph.equal_layers`), continued to the layers left out.

Behind the results and saved tensors of the shortened graph come those of each layer left out, in the graph's order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from firebrick.ir.graph.equal_layers import NotAlike, Repeat
from firebrick.runtime import TrainingPlan
from firebrick.trace.joint_split import Division


def forward_layers(division: Division, repeat: Repeat | None) -> Repeat | None:
    """Note which layer the results of the forward are saved for."""
    if repeat is None:
        return None
    outputs: list[Any] = [None] * len(division.forward.outputs)
    for key, place in zip(division.keys, division.plan.saved, strict=True):
        if place.kind == "result":
            label = repeat.label(key)
            if label is not None and (outputs[int(place.at)] or int(place.at) < division.plan.results):
                label = None  # what is a result besides is one of no layer
            outputs[int(place.at)] = label
    return replace(repeat, outputs=tuple(outputs))


def backward_layers(division: Division, repeat: Repeat | None) -> Repeat | None:
    """Note which layer what the backward takes and gives belongs to; None: no layer; raises NotAlike: several."""
    if repeat is None:
        return None
    outputs: list[Any] = [None] * len(division.backward.outputs)
    for place, at in zip(division.plan.wrt, division.order, strict=True):
        label = repeat.label((place.kind, place.at))
        if at is None or label is None:
            continue
        if (outputs[at] or label)[0] != label[0] or division.backward.outputs[at] is not None:
            raise NotAlike("two layers have one gradient")
        outputs[at] = outputs[at] or label
    inputs = tuple([repeat.label(key) for key in division.keys])
    if not any(inputs) and not any(outputs):
        return None
    return replace(repeat, backward=True, inputs=inputs, outputs=tuple(outputs))


def layer_keys(division: Division, repeat: Repeat | None) -> list[Any]:
    """What is saved of all layers, as a division of the whole graph names it."""
    if repeat is None:
        return [*division.keys]
    numbers, names = repeat.numbers, repeat.own
    third = _third(division.keys, repeat)
    copies = [
        (key[0], names[k][label], 0) if key[0] == "const" else (key[0], numbers[k][label[0]], label[1])
        for k in repeat.left_out()
        for key, label in third
    ]
    return [*division.keys, *copies]


def layer_plan(division: Division, repeat: Repeat | None) -> TrainingPlan:
    """The plan of all layers."""
    plan = division.plan
    if (marked := forward_layers(division, repeat)) is None or repeat is None:
        return plan
    outputs, third = marked.outputs, _third_of(marked)
    rows = [(*row, division.keys.index(row[0])) for row in _third(division.keys, repeat)]
    constants = _third([(p.kind, p.at, p, reach) for p, reach in zip(plan.wrt, plan.reach, strict=True)], repeat)
    saved, wrt, reach = [*plan.saved], [*plan.wrt], [*plan.reach]
    size, parts = plan.bytes_saved, [[*part.saved] for part in plan.parts]
    for number, k in enumerate(repeat.left_out()):
        first = len(outputs) + number * len(third)
        for _, label, at in rows:
            place = plan.saved[at]
            for part, all_saved in zip(plan.parts, parts, strict=True):
                all_saved += [len(saved)] * (at in part.saved)
            if place.kind == "const":
                saved.append(place._replace(at=repeat.own[k][label]))
                continue
            if place.at not in third:
                raise NotAlike("a layer that is left out has a result")
            saved.append(place._replace(at=first + third.index(int(place.at))))
            size += division.sizes[at]
        wrt += [key[2]._replace(at=repeat.own[k][label]) for key, label in constants]
        reach += [key[3] for key, _ in constants]
    nodes = tuple([part._replace(saved=tuple(row)) for part, row in zip(plan.parts, parts, strict=True)])
    plan = replace(plan, saved=tuple(saved), wrt=tuple(wrt), reach=tuple(reach), parts=nodes)
    return replace(plan, bytes_saved=size, uses=())


def layer_order(division: Division, repeat: Repeat | None, plan: TrainingPlan) -> tuple[int | None, ...]:
    """Which result of the backward of all layers is the gradient of each of the plan's `wrt`."""
    if (marked := backward_layers(division, repeat)) is None or repeat is None:
        at = dict(zip(division.plan.wrt, division.order, strict=True))
        others = {name for k in repeat.left_out() for name in repeat.own[k]} if repeat else ()
        return tuple([None if place.at in others else at[place] for place in plan.wrt])
    outputs, third = marked.outputs, _third_of(marked)
    rows = zip(division.plan.wrt, division.order, strict=True)
    constants = _third([(place.kind, place.at, at) for place, at in rows], repeat)
    order = [*division.order]
    for number in range(len(repeat.left_out())):
        first = len(outputs) + number * len(third)
        order += [None if key[2] is None else first + third.index(key[2]) for key, _ in constants]
    return tuple(order)


def _third_of(repeat: Repeat) -> list[int]:
    """Positions of the third layer's results."""
    return [i for i, label in enumerate(repeat.outputs) if label is not None and label[0] == 2]


def _third(keys: Iterable[Any], repeat: Repeat) -> list[tuple[Any, Any]]:
    """Keys of the third layer, the model of those left out, and their place in the layer."""
    return [(key, label[1]) for key in keys if (label := repeat.label(key)) is not None and label[0] == 2]
