"""Instructions of sm_61 with their control codes, as `nvdisasm -c -hex` prints them.

A control word stands before each three instructions and has 21 bits for each: clocks until the warp's next instruction, whether the
scheduler should go on with another warp, the scoreboards that the instruction sets, those that it waits for, and the operands that
stay in the reuse cache. Source: SM61's control codes as published for Maxwell (github.com/NervanaSystems/maxas), whose multiprocessor
this is.
"""
import collections, re

MULTIPLY_ADDS = ("FFMA", "IDP")
ARITHMETIC = re.compile(r"F(FMA|ADD|MUL|SET|MNMX|CMP|SWZADD)|IDP|I(ADD|SCADD|MUL|MAD|MNMX|SET|CMP)|XMAD|LOP|SH[LRF]|BF[EI]|"
                        r"VAB|VADD|LEA|POPC|FLO|MUFU|RRO|[FI]2[FI]|PRMT|SEL|RPCMP")
OFF_MAIN = re.compile(r"LD|ST|ATOM|RED|SHFL|MOV|MUFU|RRO|[FI]2[FI]|NOP")  # by the cost model's classes
LINE = re.compile(r"/\*([0-9a-f]{4,})\*/\s+\{?\s*(@!?U?P\w+ )?\s*([A-Z][A-Z0-9]*\S*)\s*([^;]*)")
GROUP = 32  # bytes of a control word and its three instructions


class Instruction:
    """One instruction with its part of a control word."""

    def __init__(self, name, operands, control, predicate=""):
        self.name, self.opcode, self.text, self.control = name, name.split(".")[0], operands, control
        # a predicate that is always false or true is none
        self.predicated = bool(predicate) and not predicate.strip().endswith("PT")
        # the registers by operand: destination, and what is in the slots a, b and c
        self.registers = [int(m[1]) if (m := re.match(r"[-|~]*R(\d+)\b", operand.strip())) else None for operand in operands.split(",")]

    @property
    def stall(self):
        """Clocks until the warp's next instruction; none if both are issued together."""
        return self.control & 15

    @property
    def yields(self):
        """Whether the scheduler should go on with another warp; the bit says that it should not."""
        return not self.control >> 4 & 1

    @property
    def written(self):
        """The scoreboard that is released when the result is there; none is 7."""
        return self.control >> 5 & 7

    @property
    def read(self):
        """The scoreboard that is released when the operands have been read; none is 7."""
        return self.control >> 8 & 7

    @property
    def waits(self):
        """The scoreboards that must have been released before."""
        return [n for n in range(6) if self.control >> 11 + n & 1]

    @property
    def reuse(self):
        """For each slot, whether its register stays in the slot's reuse cache."""
        return [bool(self.control >> 17 + slot & 1) for slot in range(3)]

    @property
    def target(self):
        """The label to which a branch, or a return from a divergent part, goes."""
        found = re.search(r"`\((\.L_\w+)\)|BRANCH_TARGETS (\.L_\w+)", self.text)
        return found and (found[1] or found[2])


def instructions(lines):
    """The instructions of a kernel and its labels' places.

    The word of an instruction issued together with the one before stands on a line of its own, as control words do. The last such
    line before the first of three instructions is their control word.
    """
    found, labels, fields, word = [], {}, [], None
    for line in lines:
        if label := re.match(r"\s*(\.L_\w+):", line):
            labels[label[1]] = len(found)
        elif alone := re.fullmatch(r"\s*/\* (0x[0-9a-f]{16}) \*/\s*", line):
            word = int(alone[1], 16)
        elif one := LINE.search(line):
            if int(one[1], 16) % GROUP == 8:
                fields, word = [] if word is None else [word >> 21 * n & 0x1FFFFF for n in range(3)], None
            found.append(Instruction(one[3], one[4], fields.pop(0) if fields else None, one[2] or ""))
    return found, labels


def conflicts(code, before=()):
    """For each instruction the issue slots that it loses because registers that it reads lie in one bank (number mod 4).

    A register that the instruction before has left in the slot's reuse cache is not read. `before` runs before `code`.
    """
    cached, lost = [None] * 3, []
    for one in [*before, *code]:
        sources = (one.registers[1:4] + [None] * 3)[:3]
        banks = collections.Counter()
        if ARITHMETIC.match(one.opcode):
            banks.update(r % 4 for r in {r for slot, r in enumerate(sources) if r is not None and r != cached[slot]})
        lost.append(max([n - 1 for n in banks.values()], default=0))
        cached = [sources[slot] if one.reuse[slot] else None for slot in range(3)]
    return lost[len(before):]


def back_branches(found, labels):
    """(begin, end) of each loop: from a label to after the branch back to it."""
    for at, one in enumerate(found):
        if one.opcode == "BRA" and one.target and labels.get(one.target, at + 1) <= at:
            yield labels[one.target], at + 1


def innermost_loops(found, labels):
    """(begin, end) of the loops that have no loop inside."""
    loops = list(back_branches(found, labels))
    return [a for a in loops if not any(b != a and a[0] <= b[0] and b[1] <= a[1] for b in loops)]


def multiply_adds(code):
    return max(sum(one.opcode == op for one in code) for op in MULTIPLY_ADDS)
