"""Tests of the simulation on code written by hand. `scripts/sass-report` runs them before anything else."""
import io, unittest

from .code import Instruction, conflicts, instructions
from .multiprocessor import BARRIER, GLOBAL_LATENCY, SHARED_LATENCY, Op, clocks, operations, outstanding, run
from .path import hot_loop, path


def one(text, stall=1, yields=False, written=7, read=7, waits=(), reuse=0):
    """An instruction with its control code. What begins with @ is its predicate."""
    predicate, _, rest = text.partition(" ") if text.startswith("@") else ("", "", text)
    name, _, operands = rest.partition(" ")
    control = stall | (not yields) << 4 | written << 5 | read << 8 | sum(1 << n for n in waits) << 11 | reuse << 17
    return Instruction(name, operands, control, predicate)


def time(code, blocks=1, warps=1, rounds=1):
    return run(operations(code) + [Op.end()], blocks, warps, rounds)[0]


FFMA = "FFMA R0, R1, R2, R3"


class Issue(unittest.TestCase):
    def test_one_instruction_a_clock(self):
        self.assertEqual(time([one(FFMA)] * 10), 10)

    def test_warps_of_a_scheduler_share_its_slots(self):
        self.assertEqual(time([one(FFMA)] * 10, warps=4), 10)
        self.assertEqual(time([one(FFMA)] * 10, warps=8), 20)

    def test_another_warp_fills_a_stall(self):
        self.assertEqual(time([one(FFMA, stall=6)] * 10), 60)
        self.assertLess(time([one(FFMA, stall=6)] * 10, warps=8), 70)

    def test_two_are_issued_together(self):
        self.assertEqual(time([one(FFMA, stall=0), one("MOV R4, R5")] * 5), 5)

    def test_a_pair_of_which_one_meets_a_bank_conflict_takes_two_slots(self):
        self.assertEqual(time([one("FFMA R0, R1, R5, R2", stall=0), one("MOV R4, R5")] * 5), 10)

    def test_registers_of_one_bank_take_another_slot(self):
        self.assertEqual(time([one("FFMA R0, R1, R5, R2")] * 10), 20)
        self.assertEqual(time([one("FFMA R0, R1, R5, R9")] * 10), 30)

    def test_a_register_of_the_reuse_cache_is_not_read(self):
        self.assertEqual(conflicts([one("FFMA R0, R1, R2, R3", reuse=1), one("FFMA R0, R1, R5, R2"), one("FFMA R0, R1, R5, R2")]), [0, 0, 1])

    def test_units_of_half_and_quarter_rate(self):
        self.assertEqual(time([one("SHL R0, R1, 0x2")] * 10), 19)
        self.assertEqual(time([one("MUFU.EX2 R0, R1")] * 10), 37)


class Waiting(unittest.TestCase):
    def test_for_a_load(self):
        self.assertEqual(time([one("LDG.E R0, [R2]", written=0), one(FFMA, waits=[0])]), 1 + GLOBAL_LATENCY + 1)
        self.assertEqual(time([one("LDS R0, [R2]", written=0), one(FFMA, waits=[0])]), 1 + SHARED_LATENCY + 1)

    def test_other_instructions_go_on_meanwhile(self):
        load = one("LDG.E R0, [R2]", written=0)
        self.assertEqual(time([load, *[one(FFMA)] * 100, one(FFMA, waits=[0])]), 1 + GLOBAL_LATENCY + 1)

    def test_for_all_but_the_last_of_some_loads(self):
        loads = [one("LDS.128 R0, [R2]", written=5)] * 4  # the port gives them at 2, 4, 6 and 8
        self.assertEqual(time([*loads, one("DEPBAR.LE SB5, 0x1 "), one(FFMA)]), 6 + SHARED_LATENCY + 2)
        self.assertEqual(outstanding("SB0, 0x0, {4,3} "), [(4, 0), (3, 0), (0, 0)])
        self.assertEqual(outstanding(" {2,0}         }"), [(2, 0), (0, 0)])

    def test_at_the_port_of_shared_memory(self):
        # four schedulers load at once, two wavefronts each
        load = [one("LDS.128 R0, [R2]", written=0), one(FFMA, waits=[0])]
        self.assertEqual(time(load, warps=4), 4 * 2 + SHARED_LATENCY + 1)

    def test_at_a_barrier_for_the_last_warp_of_the_block(self):
        code = [*[one(FFMA)] * 20, one("BAR.SYNC 0x0", stall=5), one(FFMA)]
        self.assertEqual(time(code, warps=4), 20 + BARRIER + 1)
        self.assertEqual(time(code, warps=8), 41 + BARRIER + 2)

    def test_a_block_begins_where_one_ended(self):
        self.assertEqual(time([one(FFMA, stall=6)] * 10, rounds=3), 180)


def listing(code):
    """(instructions, labels) of (label, instruction) pairs, `BRA x` for a branch to x."""
    found = [Instruction(i.name, f"`(.L_x_{i.text})" if i.opcode == "BRA" else i.text, i.control, "@P0 " * i.predicated) for _, i in code]
    return found, {f".L_x_{label}": at for at, (label, _) in enumerate(code) if label}


class Way(unittest.TestCase):
    CODE = [
        ("", one("S2R R0, SR_TID.X")),
        ("", one("@P0 EXIT")),  # no thread has work: passed
        ("outer", one("@P0 BRA skip")),  # the edge of the data: not taken
        ("", one("STS [R0], R1")),
        ("skip", one("BAR.SYNC 0x0")),
        ("inner", one(FFMA)),
        ("", one(FFMA)),
        ("", one("@P0 BRA inner")),
        ("", one("@P0 BRA outer")),
        ("", one("@P0 BRA store")),  # an addend that is there only sometimes: left out
        ("", one("LDG.E R5, [R6]")),
        ("store", one("STG.E [R6], R0")),
        ("", one("EXIT")),
    ]

    def test_through_two_loops_to_the_end(self):
        found, labels = listing(self.CODE)
        self.assertEqual(hot_loop(found, [(2, 9), (5, 8)]), (2, 9))
        way = path(found, labels, (5, 8))
        opcodes = lambda code: [i.opcode for i in code]
        self.assertEqual(opcodes(way.prologue), ["S2R", "EXIT"])
        self.assertEqual(opcodes(way.head), ["BRA", "STS", "BAR"])
        self.assertEqual(opcodes(way.loop), ["FFMA", "FFMA", "BRA"])
        self.assertEqual(opcodes(way.tail), ["BRA"])
        self.assertEqual(opcodes(way.epilogue), ["BRA", "STG", "EXIT"])

    def test_clocks_are_those_of_the_parts(self):
        found, labels = listing(self.CODE)
        way = path(found, labels, (5, 8))
        [of_one] = clocks(way, 3, [1], 1)
        self.assertEqual(of_one.each, 3)
        self.assertEqual(of_one.around, 3 + BARRIER)  # of its four instructions the barrier's own slot is in the wait
        self.assertGreaterEqual(of_one.start, 5)

    def test_a_pass_takes_its_slots_at_least(self):
        found, labels = listing(self.CODE)
        [full] = clocks(path(found, labels, (5, 8)), 3, [4], 8)
        self.assertGreaterEqual(full.each, 3 * 4 * 8 / 4)

    def test_none_without_an_end(self):
        found, labels = listing(self.CODE[:-1])
        self.assertIsNone(path(found, labels, (5, 8)))


class Reading(unittest.TestCase):
    def test_the_word_of_a_paired_instruction_is_no_control_word(self):
        found, _ = instructions("""
                                  /* 0x001fc400fe2007f0 */
        /*0008*/  {  MOV R1, R2 ;  /* 0x5c98078000270001 */
        /*0010*/     STS [R3], R4  }
                                  /* 0xef5c000000070304 */
        /*0018*/ @!P0 FADD R5, R6, R7 ; /* 0x5c58000000770605 */
        """.splitlines())
        self.assertEqual([i.stall for i in found], [0, 1, 1])
        self.assertEqual([i.predicated for i in found], [False, False, True])


def failed_tests():
    """What the tests say if one fails, else nothing."""
    out = io.StringIO()
    tests = unittest.TestSuite(unittest.defaultTestLoader.loadTestsFromTestCase(case) for case in (Issue, Waiting, Way, Reading))
    return "" if unittest.TextTestRunner(out).run(tests).wasSuccessful() else out.getvalue()
