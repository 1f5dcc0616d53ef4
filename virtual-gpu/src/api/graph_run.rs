//! Runs a graph that was launched.

use super::clock::{Clock, join};
use super::execute::call_host;
use super::state::{Driver, Guard};
use super::stream_id::StreamId;
use super::work::{Exec, Node, Work};

impl Driver {
    /// Prepares the stream of a node in a graph over several devices: it follows the ends of the nodes before.
    fn begin_node(&mut self, node: &Node, lane: StreamId, start: &End, ends: &[Option<End>]) -> bool {
        let (mut clock, mut time, mut ran) = start.clone();
        for (before, ended, did) in node.after.iter().filter_map(|&a| ends[a].as_ref()) {
            join(&mut clock, before);
            (time, ran) = (time.max(*ended), ran && *did);
        }
        if let Some(s) = self.streams.get_mut(&lane) {
            s.queued += 1;
            clock.insert(lane, s.queued);
            (s.clock, s.time) = (clock, time);
        }
        ran
    }
}

/// After a node: what its lane follows, the model time, and whether it ran.
type End = (Clock, f64, bool);

/// Runs a graph that was launched on a stream: its nodes in any order that the edges allow. In a graph over several devices each
/// runs on its own device, and nodes that follow a faulty one do not run, on any device. The guard is released while a host
/// function runs.
pub(super) fn run(mut guard: Guard, id: StreamId, exec: &Exec) -> Result<Guard, u32> {
    let d = &mut *guard;
    let start: End =
        d.streams.get(&id).map_or((Clock::new(), 0.0, true), |s| (s.clock.clone(), s.time, true));
    let mut ends: Vec<Option<End>> = vec![None; exec.nodes.len()];
    for _ in 0..exec.nodes.len() {
        let is_ready =
            |&n: &usize| ends[n].is_none() && exec.nodes[n].after.iter().all(|&a| ends[a].is_some());
        let ready: Vec<usize> = (0..exec.nodes.len()).filter(is_ready).collect();
        let n = ready[guard.pick(ready.len() as u64) as usize];
        let node = &exec.nodes[n];
        let lane = exec.lanes.get(&node.lane).copied();
        let mut ran = lane.is_none_or(|lane| guard.begin_node(node, lane, &start, &ends));
        if ran && node.enabled {
            for work in &node.work {
                match work {
                    Work::Call { .. } => guard = call_host(guard, id, work)?,
                    work => guard.execute_in_graph(lane.unwrap_or(id), work),
                }
            }
        }
        ran &= guard.fault_of(node.device).is_ok();
        let end = lane.and_then(|lane| guard.streams.get_mut(&lane)).map(|s| {
            s.finished += 1;
            (s.clock.clone(), s.time, ran)
        });
        ends[n] = Some(end.unwrap_or((Clock::new(), 0.0, ran)));
    }
    if !exec.lanes.is_empty() {
        if let Some(s) = guard.streams.get_mut(&id) {
            for (clock, time, _) in ends.iter().flatten() {
                join(&mut s.clock, clock);
                s.time = s.time.max(*time);
            }
        }
        if !guard.execs.contains_key(&exec.id) {
            guard.remove_lanes(exec); // it was destroyed before it ran
        }
    }
    Ok(guard)
}
