"""The way of a warp through a kernel: to its hot loop, passes of it and of the loop around it, and on to the kernel's end.

It is found without values, among the ways that go forward alone, so other loops are passed once, unless the caller knows how often. Inside of the hot loop it is the way with
the most multiply-adds; before it, and in the loop around it, the one with the most loads and stores, for what is skipped there are the
edges of the data; after it the one with the most stores and then the fewest loads, which fetch optional addends there. Of equal ones
it is the shortest. Calls of subroutines (divisions of 64 bits) are stepped over. An EXIT with a predicate is passed, but not after
BAR.RED, by which a block learns that it is not the last one.
"""
from .code import MULTIPLY_ADDS, back_branches, multiply_adds

JUMPS = ("BRA", "SYNC", "BRK")
LOADS, STORES = ("LDG", "LD"), ("STG", "ST", "STS", "ATOM", "RED")
MOST = 1 << 20  # more than a kernel has instructions

PRODUCTS = lambda one: MOST * MOST * (one.opcode in MULTIPLY_ADDS) + MOST * (one.opcode in LOADS + STORES) - 1
TRAFFIC = lambda one: MOST * (one.opcode in LOADS + STORES) - 1
RESULTS = lambda one: MOST * (MOST * (one.opcode in STORES) - (one.opcode in LOADS)) - 1


class Path:
    """A kernel's instructions in parts. A pass through the loop around the hot one is `head`, passes of `loop`, and `tail`; both are
    empty where no loop is around. What a last pass of the hot loop does before it leaves from the middle belongs to what follows.
    """

    def __init__(self, prologue, head, loop, tail, epilogue):
        self.prologue, self.head, self.loop, self.tail, self.epilogue = prologue, head, loop, tail, epilogue

    @property
    def around(self):
        return self.head + self.tail

    @property
    def start(self):
        """What a warp does once."""
        return self.prologue + self.epilogue


class Kernel:
    """A kernel's instructions and where each can lead."""

    def __init__(self, found, labels):
        self.found = found
        votes = [at for at, one in enumerate(found) if one.name.startswith("BAR.RED")]
        self.last_block = votes[0] if votes else len(found)
        self.next = [self.targets(labels, at) for at in range(len(found))]

    def targets(self, labels, at):
        one = self.found[at]
        jump = [labels[one.target]] if one.opcode in JUMPS and one.target in labels else []
        ends = one.opcode in (*JUMPS, "BRX", "RET", "EXIT") and not one.predicated or self.leaves(at)
        return ([] if ends or at + 1 >= len(self.found) else [at + 1]) + jump

    def leaves(self, at):
        one = self.found[at]
        return one.opcode == "EXIT" and (not one.predicated or at > self.last_block)

    def way(self, begin, end, value, last=None):
        """The places from `begin` to `last`, or to an EXIT, the way of the greatest sum of `value` among [begin, end); none is None."""
        best, step = {}, {}
        for at in range(end - 1, begin - 1, -1):
            if at == last or last is None and self.leaves(at):
                best[at], step[at] = value(self.found[at]), None
            elif onward := [to for to in self.next[at] if at < to and to in best]:
                step[at] = max(onward, key=lambda to: best[to])
                best[at] = value(self.found[at]) + best[step[at]]
            elif last is None and self.found[at].opcode == "EXIT":  # of a loop that has no other end
                best[at], step[at] = value(self.found[at]), None
        if begin not in best:
            return None
        places, at = [], begin
        while at is not None:
            places.append(at)
            at = step[at]
        return places

    def exits(self, loop, inside):
        """(where a way goes on after the loop, what of its last pass it did before): at its end, or from the middle."""
        begin, end = loop
        for place, at in [(-1, end - 1), *enumerate(inside)]:
            for to in self.next[at]:
                if not begin <= to < end:
                    yield to, inside[:place + 1]
            if self.found[at].opcode == "EXIT":
                yield at, inside[:place]

    def onward(self, loop, inside, end, value, last=None):
        """The places from the end of a loop to `last` or an EXIT, the best of its exits."""
        ways = [(done, rest) for to, done in self.exits(loop, inside) if (rest := self.way(to, end, value, last))]
        best = max(ways, key=lambda way: sum(value(self.found[at]) for at in way[1]), default=None)
        return best and best[0] + best[1]


def hot_loop(found, loops):
    """The (begin, end) with the most multiply-adds."""
    return max(loops, key=lambda loop: multiply_adds(found[loop[0]:loop[1]]), default=None)


def inside_of(found, labels, loop):
    """The instructions of one pass through a loop."""
    places = Kernel(found, labels).way(loop[0], loop[1], PRODUCTS, loop[1] - 1)
    return [found[at] for at in places] if places else found[loop[0]:loop[1]]


def repeated(places, loops, passes):
    """`places` with a nest of loops passed so often, `passes` from the outermost inwards. One begins after the other."""
    for (begin, end), n in reversed(list(zip(loops, passes))):
        inside = [at for at, place in enumerate(places) if begin <= place < end]
        if inside:
            first, last = inside[0], inside[-1] + 1
            places = places[:first] + n * places[first:last] + places[last:]
    return places


def path(found, labels, loop, passes=()):
    """The path through a kernel whose hot loop is `loop`, (begin, end); None if none reaches the loop or the end. A nest of loops with
    multiply-adds that follows the hot one in the loop around is passed as often as `passes` says, from the outermost inwards.
    """
    kernel, size = Kernel(found, labels), len(found)
    inside = kernel.way(*loop, PRODUCTS, loop[1] - 1)
    around = min((a for a in back_branches(found, labels) if a[0] < loop[0] and loop[1] < a[1]), key=lambda a: a[1] - a[0], default=None)
    head, tail, outer, places = [], [], loop, inside
    if inside and around:
        first, rest = kernel.way(around[0], loop[0] + 1, TRAFFIC, loop[0]), kernel.onward(loop, inside, around[1], TRAFFIC, around[1] - 1)
        if first and rest:
            nest = [a for a in sorted(set(back_branches(found, labels)), key=lambda a: a[0] - a[1])
                    if loop[1] <= a[0] and a[1] < around[1] and multiply_adds(found[a[0]:a[1]])]
            head, tail, outer = first[:-1], repeated(rest, nest, passes), around
            places = head + inside + tail
    prologue = kernel.way(0, outer[0] + 1, TRAFFIC, outer[0])
    epilogue = inside and kernel.onward(outer, places, size, RESULTS)
    if not (inside and prologue and epilogue):
        return None
    pick = lambda places: [found[at] for at in places]
    optional = lambda at: found[at].predicated and found[at].opcode in LOADS and at >= outer[1]
    return Path(pick(prologue[:-1]), pick(head), pick(inside), pick(tail), pick(at for at in epilogue if not optional(at)))
