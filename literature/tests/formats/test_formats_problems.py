import pytest

from pipecut_literature.dnn_partitioning.file import PlacementNode
from pipecut_literature.pipedream.profile import ProfiledLayer, ProfiledModel


def layer(name, description="ReLU"):
    return ProfiledLayer(name, description, 1, 1, 1, 1)


def test_what_pipedream_plans():
    layers = (layer("z", "__getitem__(0)"), layer("i", "Input0"), layer("a"), layer("b"), layer("j", "Input1"))
    model = ProfiledModel(layers, ((1, 2), (2, 0), (2, 3), (4, 3)))
    planned = model.planned()
    assert [one.name for one in planned.layers] == ["a", "b"]
    assert planned.edges == ((0, 1),)


def test_an_input_in_the_middle_and_a_used_getitem_stay():
    layers = (layer("a"), layer("b", "Input of something"), layer("c", "__getitem__(1)"), layer("d"))
    model = ProfiledModel(layers, ((0, 1), (1, 2), (2, 3)))
    assert model.planned() == model


@pytest.mark.parametrize(
    ("names", "edges", "said"),
    [
        ("aa", (), "two nodes have the same name"),
        ("ab", ((0, 2),), "edge 0 -> 2, expected numbers below 2"),
        ("ab", ((-1, 0),), "edge -1 -> 0, expected numbers below 2"),
        ("abc", ((0, 1), (1, 2), (2, 1)), "a cycle, b -> c -> b$"),
        ("abc", ((1, 1),), "a cycle, b -> b$"),
        ("abcdefghij", tuple((at, (at + 1) % 10) for at in range(10)), r"f -> g -> … \(3 more\) -> a$"),
    ],
)
def test_a_graph_is_checked(names, edges, said):
    with pytest.raises(ValueError, match=said):
        ProfiledModel(tuple(layer(name) for name in names), edges)


def test_numbers_are_checked():
    with pytest.raises(ValueError, match="found -1, expected a whole number"):
        ProfiledLayer("a", "", -1, 0, 0, 0)
    with pytest.raises(ValueError, match="node 3: found nan"):
        PlacementNode(3, "", float("nan"), 0.0, 0.0, 0.0, True, False, None)
