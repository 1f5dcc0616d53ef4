"""A multiprocessor of sm_61, clock by clock: how long its resident warps take for their paths.

Warp n is scheduler n mod 4's. A scheduler issues one instruction a clock, or two of one warp where the control code says so. It stays with
a warp until that must wait or yields, then takes the one that has been ready longest. A conflict of register banks takes another slot.
The four share the port of shared memory, at which requests wait in line. Caches and the memory's bandwidth are left out: a load of
global memory takes the same time always, and the cost model has roofs for the rest.
"""
import heapq

from .code import ARITHMETIC, conflicts

SCHEDULERS = 4
# The scheduler's unit of an instruction and the clocks for which it keeps it. CUDA C Programming Guide, throughput of arithmetic
# instructions of 6.1: 64 lanes a clock and multiprocessor for shifts, comparisons, minima and fields of bits; 32 for the others. Which
# instructions are which: maxas.
HALF = "SHL SHR SHF BFE BFI ISCADD LEA ISETP ISET ICMP IMNMX FSETP FSET FCMP FMNMX PSETP PSET R2P VMNMX VADD VABSDIFF".split()
QUARTER = "MUFU F2F F2I I2F I2I POPC FLO".split()
UNITS = {**{op: (0, 2) for op in HALF}, **{op: (1, 4) for op in QUARTER}}
# Wavefronts of a request by its width. Loads of 16 bytes share words as in the register tiles; others read and write different ones.
WAVEFRONTS = {("LDS", "64"): 2, ("LDS", "128"): 2, ("STS", "64"): 2, ("STS", "128"): 4}
SHARED = frozenset("LDS STS ATOMS SHFL".split())
GLOBAL = frozenset("LDG LD LDL STG ST STL ATOM RED".split())
# Clocks. Of a global load and a barrier, and until a special function or a special register has its result: estimates.
GLOBAL_LATENCY, SHARED_LATENCY, SPECIAL_LATENCY, REGISTER_LATENCY, BARRIER = 450, 24, 20, 25, 30
OPERANDS = 20  # until a memory instruction has read its operands: maxas, `rhold`
NO_BOARD = 7

PLAIN, MEMORY, UNIT, BARRIER_SYNC, END = range(5)


class Op:
    """Instructions that a warp issues one after the other, or one that touches more than the issue slots."""

    __slots__ = ("kind", "slots", "gap", "yields", "waits", "written", "read", "wavefronts", "latency", "unit", "busy", "mark", "paired")

    def __init__(self, one, lost, paired, late):
        """`lost` slots by bank conflicts; `paired` if it is issued together with the one before, and then `late` those that that lost."""
        self.slots, self.yields, self.paired = 1 + lost, one.yields and one.stall > 0, paired
        self.gap = one.stall and one.stall + lost + late
        self.waits = [(n, 0) for n in one.waits]
        self.written, self.read, self.mark = one.written, one.read, False
        self.kind, self.latency, self.wavefronts, self.unit, self.busy = PLAIN, REGISTER_LATENCY, 0, 0, 0
        if one.opcode in SHARED or one.opcode in GLOBAL:
            width = next((part for part in one.name.split(".")[1:] if part in ("64", "128")), "32")
            self.kind, self.wavefronts = MEMORY, WAVEFRONTS.get((one.opcode, width), 1)
            self.latency = GLOBAL_LATENCY if one.opcode in GLOBAL else SHARED_LATENCY
        elif one.opcode in UNITS:
            self.kind, self.latency = UNIT, SPECIAL_LATENCY
            self.unit, self.busy = UNITS[one.opcode]
        elif one.name.startswith(("BAR.SYNC", "BAR.RED")):
            self.kind = BARRIER_SYNC
        elif one.opcode == "DEPBAR":
            self.waits += outstanding(one.text)

    @staticmethod
    def end():
        op = Op.__new__(Op)
        op.kind, op.slots, op.gap, op.waits, op.written, op.read = END, 0, 0, [], NO_BOARD, NO_BOARD
        op.yields = op.mark = op.paired = False
        return op


def outstanding(text):
    """(scoreboard, how many of its releases may be outstanding) of a DEPBAR."""
    head, _, others = text.replace("}", "").partition("{")
    waits = [(int(n), 0) for n in others.split(",") if n.strip().isdigit()]
    if parts := [part.strip() for part in head.split(",") if part.strip()]:
        waits.append((int(parts[0].removeprefix("SB")), int(parts[1], 16)))
    return waits


def operations(code, before=(), mark=False):
    """A straight part of a path, which runs after `before`. With `mark`, the clock of its last operation is noted.

    Arithmetic that neither waits nor yields nor is waited for becomes one operation: the scheduler does not leave the warp there.
    """
    ops, paired, late, goes_on = [], False, 0, False
    for one, lost in zip(code, conflicts(code, before)):
        if one.opcode == "NOP":
            continue
        op = Op(one, lost, paired, late)
        paired, late = one.stall == 0, lost if one.stall == 0 else 0
        plain = op.kind == PLAIN and op.written == op.read == NO_BOARD and ARITHMETIC.match(one.opcode)
        if plain and goes_on and not op.waits:
            last = ops[-1]
            last.slots, last.gap, last.yields = last.slots + op.slots, last.gap + op.gap, op.yields
        else:
            ops.append(op)
        goes_on = plain and one.stall == 1 and not op.yields
    if ops and mark:
        ops[-1].mark = True
    return ops


class Warp:
    __slots__ = ("scheduler", "block", "at", "boards", "marks")

    def __init__(self, number, block):
        self.scheduler, self.block, self.marks = number % SCHEDULERS, block, []
        self.begin()

    def begin(self):
        # the clocks at which each scoreboard is released, in order
        self.at, self.boards = 0, [[] for _ in range(NO_BOARD)]

    def release(self, board, clock):
        if board != NO_BOARD:
            releases = self.boards[board]
            releases.append(clock if not releases or releases[-1] < clock else releases[-1])

    def ready(self, clock, op):
        """The clock, not before `clock`, at which the scoreboards let an operation go."""
        for board, allowed in op.waits:
            releases = self.boards[board]
            if len(releases) > allowed and releases[-1 - allowed] > clock:
                clock = releases[-1 - allowed]
        return clock


def run(ops, blocks, warps, rounds=1):
    """(clocks of `rounds` times `blocks` blocks of `warps` warps, each warp's marks). `blocks` are resident; a block begins in the place of
    one that ended.
    """
    all_warps = [Warp(n, n // warps) for n in range(blocks * warps)]
    queue = [(0, n, warp) for n, warp in enumerate(all_warps)]  # clock at which a warp is ready, order, warp
    alive, arrived, left = [warps] * blocks, [[] for _ in range(blocks)], [rounds - 1] * blocks
    free, units, port, order, last = [0] * SCHEDULERS, [[0, 0] for _ in range(SCHEDULERS)], 0, len(queue), 0
    while queue:
        clock, turn, warp = heapq.heappop(queue)
        scheduler, block = warp.scheduler, warp.block
        if free[scheduler] > clock:
            heapq.heappush(queue, (free[scheduler], turn, warp))
            continue
        together = 0  # with the instruction before, whose slot it shares
        while True:  # as long as the scheduler stays with the warp
            op = ops[warp.at]
            kind = op.kind
            if kind == UNIT:
                if (ready := units[scheduler][op.unit]) > clock:
                    break
                units[scheduler][op.unit] = clock + op.busy
                warp.release(op.written, clock + op.busy + op.latency)
                warp.release(op.read, clock + op.busy)
            elif kind == MEMORY:
                port = (port if port > clock else clock) + op.wavefronts
                warp.release(op.written, port + op.latency)
                warp.release(op.read, port + OPERANDS)
            elif kind == PLAIN and (op.written != NO_BOARD or op.read != NO_BOARD):
                warp.release(op.written, clock + op.latency)
                warp.release(op.read, clock + op.latency)
            free[scheduler] = max(free[scheduler], clock + op.slots - together)
            warp.at += 1
            if op.mark:
                warp.marks.append(clock)
            if kind == BARRIER_SYNC:
                arrived[block].append(warp)
                ready = None
                if len(arrived[block]) == alive[block]:
                    for other in arrived[block]:
                        heapq.heappush(queue, (other.ready(clock + max(BARRIER, op.gap), ops[other.at]), order, other))
                        order += 1
                    arrived[block] = []
                break
            if kind == END:
                last, ready = max(last, clock), None
                alive[block] -= 1
                if not alive[block] and left[block]:
                    left[block] -= 1
                    alive[block] = warps
                    for other in all_warps[block * warps:(block + 1) * warps]:
                        other.begin()
                        heapq.heappush(queue, (clock, order, other))
                        order += 1
                break
            ready = warp.ready(clock + op.gap, ops[warp.at])
            if ready == clock and ops[warp.at].paired:
                together = 1
                continue
            if op.yields or ready > free[scheduler]:
                break
            clock, together = free[scheduler], 0
        if ready is not None:
            heapq.heappush(queue, (ready, order, warp))
            order += 1
    return last, [warp.marks for warp in all_warps]


# Passes that are run: of the loop around the hot one, and of the hot one in each of those; without such a loop, of the hot one.
PASSES, INNER = 3, 3


def program(path):
    """The operations of a path with these passes."""
    loop = operations(path.loop, path.loop, mark=True)
    nest = operations(path.head) + INNER * loop + operations(path.tail) if path.around else loop
    return operations(path.prologue) + PASSES * nest + operations(path.epilogue) + [Op.end()]


class Clocks:
    """Clocks of a set of resident blocks: start + those of each pass of the loop around + those of each pass of the hot loop."""

    def __init__(self, total, marks, around, least):
        """From a run of a path's program. `least` are the clocks of a pass by its issue slots alone."""
        mean = lambda values: sum(values) / len(values)
        if around:
            of_nest = mean([(m[-INNER] - m[0]) / (PASSES - 1) for m in marks])
            self.each = max(least, mean([(m[INNER * (n + 1) - 1] - m[INNER * n]) / (INNER - 1) for m in marks for n in range(PASSES)]))
            self.around = max(0, of_nest - INNER * self.each)
            self.start = max(0, total - PASSES * of_nest)
        else:
            self.each = max(least, mean([(m[-1] - m[0]) / (PASSES - 1) for m in marks]))
            self.around, self.start = 0, max(0, total - PASSES * self.each)


def clocks(path, slots, blocks, warps):
    """The clocks of a path for each number of resident blocks. A pass of its hot loop takes so many issue slots."""
    ops = program(path)
    return [Clocks(*run(ops, n, warps), bool(path.around), slots * n * warps / SCHEDULERS) for n in blocks]
