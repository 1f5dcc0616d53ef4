//! Which share of the time work may run, from samples of the temperature.

use std::fmt;
use std::time::Duration;

/// Pacing begins this many °C below the temperature at which the hardware slows down...
const MARGIN_HOT: f32 = 3.0;
/// ...and ends this many below it. Between the two nothing changes: a GPU cools by some degrees within a second.
const MARGIN_COOL: f32 = 6.0;
/// The duty is multiplied by this when too hot. Large enough to have an effect within a heatsink's seconds...
const STEP_DOWN: f32 = 0.9;
/// ...and increased by this when cool: slowly, so that it settles below the limit.
const STEP_UP: f32 = 0.02;
/// The smallest duty.
const MIN_DUTY: f32 = 0.3;
/// The least time between steps, so that the effect of each can be observed.
const STEP_EVERY: Duration = Duration::from_secs(2);
/// The longest pause, so that a stop or an answer is not delayed.
const MAX_PAUSE: Duration = Duration::from_millis(250);

/// A device's state at one time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Time since the start.
    pub at: Duration,
    /// Temperature of the chip in °C.
    pub temperature: f32,
    /// Temperature at which the hardware slows down, in °C.
    pub slowdown: f32,
    /// Power in W; 0 if the device does not report it.
    pub power: f32,
    /// The multiprocessors' clock in MHz.
    pub clock: u32,
    /// Whether the hardware is slowing down because of heat.
    pub thermal: bool,
    /// Whether the hardware is slowing down because of power.
    pub power_capped: bool,
}

/// A change of the governor's state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event {
    /// Too hot: work is paced from now on.
    PacingBegan {
        /// The temperature in °C.
        temperature: f32,
    },
    /// The new share of the time that work may run.
    Duty(f32),
    /// Cool again: work is not paced.
    PacingEnded,
}

/// Decides which share of the time work may run.
#[derive(Clone, Debug)]
pub struct Governor {
    duty: f32,
    pacing: bool,
    stepped: Option<Duration>,
    last: Option<Sample>,
}

impl Default for Governor {
    fn default() -> Self {
        Self { duty: 1.0, pacing: false, stepped: None, last: None }
    }
}

impl Governor {
    /// Processes a sample; returns the change, if any.
    pub fn observe(&mut self, sample: Sample) -> Option<Event> {
        self.last = Some(sample);
        let hot = sample.thermal || sample.temperature >= sample.slowdown - MARGIN_HOT;
        let cool = !sample.thermal && sample.temperature <= sample.slowdown - MARGIN_COOL;
        let may_step = self.stepped.is_none_or(|at| sample.at.saturating_sub(at) >= STEP_EVERY);
        if hot && !self.pacing {
            self.pacing = true;
            self.duty *= STEP_DOWN;
            self.stepped = Some(sample.at);
            return Some(Event::PacingBegan { temperature: sample.temperature });
        }
        if !self.pacing || !may_step || !(hot || cool) {
            return None;
        }
        let before = self.duty;
        self.duty = if hot { (self.duty * STEP_DOWN).max(MIN_DUTY) } else { (self.duty + STEP_UP).min(1.0) };
        self.stepped = Some(sample.at);
        if self.duty >= 1.0 {
            self.pacing = false;
            return Some(Event::PacingEnded);
        }
        (self.duty != before).then_some(Event::Duty(self.duty))
    }

    /// The share of the time that work may run, 0.3 to 1.
    pub fn duty(&self) -> f32 {
        self.duty
    }

    /// Whether to prefer kernels that need less energy, even if they are a little slower.
    pub fn prefers_low_power(&self) -> bool {
        self.pacing || self.last.is_some_and(|sample| sample.power_capped)
    }

    /// The last sample.
    pub fn last(&self) -> Option<Sample> {
        self.last
    }
}

/// How long to wait before more work is submitted, after work that kept the GPU busy for `busy`, so that work runs the share
/// `duty` of the time.
pub fn pause_after(duty: f32, busy: Duration) -> Duration {
    busy.mul_f32(1.0 / duty - 1.0).min(MAX_PAUSE)
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PacingBegan { temperature } => write!(f, "{temperature:.0} °C: work is paced from now on"),
            Self::Duty(duty) => write!(f, "work may run {:.0} % of the time", 100.0 * duty),
            Self::PacingEnded => write!(f, "cool again: work runs freely"),
        }
    }
}

/// A line of a trace that is not a sample.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} is not a sample of a thermal trace: {text}")]
pub struct TraceError {
    /// The line's number, from 1.
    pub line: usize,
    /// The line's text.
    pub text: String,
}

/// Reads a trace: for each sample a line `seconds,temperature,slowdown,power,clock,thermal,power_capped`, the last two 0 or
/// 1. `#` begins a comment.
///
/// # Errors
/// The first line that can't be parsed.
pub fn parse_trace(text: &str) -> Result<Vec<Sample>, TraceError> {
    let mut samples = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let content = line.split('#').next().unwrap_or_default().trim();
        if content.is_empty() {
            continue;
        }
        let numbers: Option<Vec<f32>> = content.split(',').map(|word| word.trim().parse().ok()).collect();
        match numbers.as_deref() {
            Some(&[at, temperature, slowdown, power, clock, thermal, capped])
                if (0.0..1e9).contains(&at) && temperature.is_finite() && slowdown.is_finite() =>
            {
                samples.push(Sample {
                    at: Duration::from_secs_f32(at),
                    temperature,
                    slowdown,
                    power,
                    clock: clock as u32,
                    thermal: thermal != 0.0,
                    power_capped: capped != 0.0,
                });
            }
            _ => return Err(TraceError { line: index + 1, text: line.to_owned() }),
        }
    }
    Ok(samples)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(seconds: f32, temperature: f32, thermal: bool) -> Sample {
        let at = Duration::from_secs_f32(seconds);
        Sample { at, temperature, slowdown: 90.0, power: 25.0, clock: 1500, thermal, power_capped: false }
    }

    #[test]
    fn between_the_margins_nothing_changes() {
        let mut governor = Governor::default();
        assert_eq!(governor.observe(sample(0.0, 86.9, false)), None);
        assert_eq!(
            governor.observe(sample(1.0, 87.0, false)),
            Some(Event::PacingBegan { temperature: 87.0 })
        );
        for second in 2..100 {
            let temperature = if second % 2 == 0 { 84.1 } else { 86.9 };
            assert_eq!(governor.observe(sample(second as f32, temperature, false)), None);
        }
        assert_eq!(governor.duty(), 0.9);
        assert!(governor.prefers_low_power());
    }

    #[test]
    fn it_steps_down_fast_up_slowly_and_within_limits() {
        let mut governor = Governor::default();
        let mut second = 0.0;
        while second < 100.0 {
            governor.observe(sample(second, 95.0, true));
            second += 0.5;
        }
        assert_eq!(governor.duty(), MIN_DUTY);
        let pause = pause_after(governor.duty(), Duration::from_millis(30));
        let rounding = Duration::from_micros(1); // f32 rounding
        assert!(pause.abs_diff(Duration::from_millis(70)) < rounding, "{pause:?}");
        assert_eq!(pause_after(governor.duty(), Duration::from_secs(30)), MAX_PAUSE);
        let (mut events, begin) = (0, second);
        while governor.duty() < 1.0 && second < 1000.0 {
            events += usize::from(governor.observe(sample(second, 60.0, false)).is_some());
            second += 0.5;
        }
        assert!(events >= 35 && second - begin >= 69.0, "{events} events in {} s", second - begin);
        assert!(!governor.prefers_low_power());
        assert_eq!(pause_after(governor.duty(), Duration::from_secs(1)), Duration::ZERO);
    }

    /// Simulates 20 minutes of a chip on a heatsink with one time constant. Its hardware throttles at 90 °C until it is
    /// below 84 °C. Returns the number of throttlings, the work done (clock · duty), and the work of the worst 5 s once it
    /// is warm.
    fn laptop(mut governor: Option<Governor>) -> (usize, f32, f32) {
        let (mut temperature, mut braking, mut brakings, mut work) = (45.0f32, false, 0, Vec::new());
        for tick in 0..2400 {
            let duty = governor.as_ref().map_or(1.0, Governor::duty);
            if !braking && temperature >= 90.0 {
                (braking, brakings) = (true, brakings + 1);
            }
            braking &= temperature > 84.0;
            let clock = if braking { 600.0 } else { 1500.0 };
            let power = 6.0 + 24.0 * duty * (clock / 1500.0);
            temperature += (40.0 + 1.9 * power - temperature) / 25.0 * 0.5;
            work.push(clock * duty);
            if let Some(governor) = &mut governor {
                let at = Duration::from_millis(tick * 500);
                let now = Sample { at, clock: clock as u32, power, ..sample(0.0, temperature, braking) };
                governor.observe(now);
            }
        }
        let worst = work[600..].windows(10).map(|window| window.iter().sum::<f32>() / 10.0);
        (brakings, work.iter().sum(), worst.fold(f32::INFINITY, f32::min))
    }

    #[test]
    fn the_clock_is_held_instead_of_swinging() {
        let (brakings, free, free_worst) = laptop(None);
        assert!(
            brakings > 20 && free_worst == 600.0,
            "the model brakes {brakings} times, to {free_worst} MHz"
        );
        let (brakings, paced, worst) = laptop(Some(Governor::default()));
        assert_eq!(brakings, 0);
        assert!(worst > 1.5 * free_worst, "{worst} MHz in the worst seconds");
        assert!(paced > 0.95 * free, "a steady rate costs {paced} of {free}");
    }

    #[test]
    fn a_trace_is_replayed() {
        let text = include_str!("../../../tests/data/thermal_synthetic.csv");
        let samples = parse_trace(text).unwrap();
        let mut governor = Governor::default();
        let events: Vec<_> = samples.iter().filter_map(|&sample| governor.observe(sample)).collect();
        let began = events.iter().filter(|event| matches!(event, Event::PacingBegan { .. })).count();
        let ended = events.iter().filter(|event| matches!(event, Event::PacingEnded)).count();
        assert_eq!((began, ended), (1, 1), "one long heat is one period of pacing: {events:?}");
        assert_eq!(governor.last(), samples.last().copied());
        for (text, line) in
            [("1,2,3", 1), ("# ok\n0,1,2,3,4,5,x", 2), ("-1,1,1,1,1,0,0", 1), ("0,NaN,1,1,1,0,0", 1)]
        {
            assert_eq!(parse_trace(text).map_err(|error| error.line), Err(line), "{text}");
        }
    }
}
