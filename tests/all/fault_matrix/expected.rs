//! Reads `expected.txt`.

use super::Cell;
use std::cell::Cell as Flag;

struct Rule {
    text: &'static str,
    phases: Vec<&'static str>,
    functions: Vec<&'static str>,
    codes: &'static [u32],
    when: Vec<&'static str>,
    outcomes: Vec<&'static str>,
    used: Flag<bool>,
}

pub struct Expected(Vec<Rule>);

impl Expected {
    pub fn read() -> Self {
        let lines = include_str!("expected.txt").lines().map(str::trim);
        Self(lines.filter(|line| !line.is_empty() && !line.starts_with('#')).map(Rule::parse).collect())
    }

    /// Whether the first rule that matches has this outcome.
    pub fn allows(&self, cell: &Cell, outcome: &str) -> bool {
        let rule = self.0.iter().find(|rule| rule.fits(cell)).expect("the last rule fits all");
        rule.used.set(true);
        rule.outcomes.contains(&outcome)
    }

    pub fn unused(&self) -> Vec<&'static str> {
        self.0.iter().filter(|rule| !rule.used.get()).map(|rule| rule.text).collect()
    }
}

impl Rule {
    fn parse(text: &'static str) -> Self {
        let fields: Vec<_> = text.split_whitespace().collect();
        let [phases, functions, codes, when, "→", outcome] = fields[..] else {
            panic!("not a rule: {text}");
        };
        let list = |field: &'static str| match field {
            "*" => Vec::new(),
            list => list.split(',').collect(),
        };
        let codes = match codes {
            "*" => &[2, 700, 702, 719, 46, 801, 12345][..],
            "memory" => &[2],
            "fault" => &[700, 702, 719, 46],
            "other" => &[801, 12345],
            "memory,other" => &[2, 801, 12345],
            codes => panic!("not a kind of code: {codes}"),
        };
        let (phases, functions, when) = (list(phases), list(functions), list(when));
        Self {
            text,
            phases,
            functions,
            codes,
            when,
            outcomes: outcome.split('|').collect(),
            used: Flag::new(false),
        }
    }

    fn fits(&self, cell: &Cell) -> bool {
        let function = cell.function.strip_suffix("_v2").unwrap_or(&cell.function);
        (self.phases.is_empty() || self.phases.contains(&cell.phase))
            && (self.functions.is_empty() || self.functions.contains(&function))
            && self.codes.contains(&cell.code)
            && (self.when.is_empty() || self.when.contains(&cell.when))
    }
}
