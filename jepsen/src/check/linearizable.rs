//! Linearizability: every call takes effect at one moment between its beginning and its end.
//!
//! The search of Wing and Gong with Lowe's cache: calls are tried in an order that their times allow, and a set of calls
//! done together with the state that they led to is looked at once. What it costs grows fast with calls at the same time
//! and with calls whose end is not known, so a search is bounded, and histories should be of one small object: keys that
//! change after some hundred calls.

use std::collections::HashSet;
use std::fmt;
use std::hash::Hash;

use super::verdict::Verdict;

/// An object that calls change, one after the other.
pub trait Model {
    /// What it remembers.
    type State: Clone + Eq + Hash;
    /// A call, with its answer where it is known.
    type Call;

    /// What it begins with.
    fn start(&self) -> Self::State;

    /// What it remembers after a call; `None` where the call cannot have had that answer.
    fn step(&self, state: &Self::State, call: &Self::Call) -> Option<Self::State>;
}

/// A call in a history. Times only have an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Timed<C> {
    /// When it began.
    pub called: u64,
    /// When its answer came. Without one it may take effect at any time since it began, or never.
    pub answered: Option<u64>,
    /// What was called and answered.
    pub call: C,
}

/// How far the search got where no order explains all answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Violation {
    /// The calls that an order could be found for, at most.
    pub explained: usize,
    /// All calls with an answer.
    pub calls: usize,
    /// Where in the history the call stands whose answer ended the longest order.
    pub at: usize,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Violation { explained, calls, at } = self;
        write!(f, "no order explains more than {explained} of {calls} answers; the answer of call {at} does not fit")
    }
}

/// Whether the calls are linearizable. `steps` bounds the search: beyond it the answer is that nothing is known.
pub fn check<M: Model>(model: &M, history: &[Timed<M::Call>], steps: u64) -> Verdict<Violation> {
    let calls = history.iter().filter(|timed| timed.answered.is_some()).count();
    if calls == 0 {
        return Verdict::Unknown("no call was answered");
    }
    Search::new(model, history).run(steps)
}

const END: usize = usize::MAX;

/// One of a call's two moments.
#[derive(Debug, Clone, Copy)]
struct Moment {
    call: usize,
    is_answer: bool,
    before: usize,
    after: usize,
}

struct Search<'a, M: Model> {
    model: &'a M,
    history: &'a [Timed<M::Call>],
    /// In the order of time, as a linked list: what is linearized is out of it.
    moments: Vec<Moment>,
    /// The moments of each call.
    began: Vec<usize>,
    ended: Vec<usize>,
    first: usize,
    done: Vec<u64>,
}

impl<'a, M: Model> Search<'a, M> {
    fn new(model: &'a M, history: &'a [Timed<M::Call>]) -> Self {
        let mut order: Vec<(u64, bool, usize)> = Vec::new();
        for (call, timed) in history.iter().enumerate() {
            // At one time, a call comes before an answer: the two may have overlapped.
            order.push((timed.called, false, call));
            order.extend(timed.answered.map(|at| (at.max(timed.called), true, call)));
        }
        order.sort_unstable();
        let mut search = Search {
            model,
            history,
            moments: Vec::with_capacity(order.len()),
            began: vec![END; history.len()],
            ended: vec![END; history.len()],
            first: 0,
            done: vec![0; history.len().div_ceil(64)],
        };
        let last = order.len() - 1;
        for (at, (_, is_answer, call)) in order.into_iter().enumerate() {
            let (before, after) = (if at == 0 { END } else { at - 1 }, if at == last { END } else { at + 1 });
            search.moments.push(Moment { call, is_answer, before, after });
            let moments = if is_answer { &mut search.ended } else { &mut search.began };
            moments[call] = at;
        }
        search
    }

    fn run(mut self, steps: u64) -> Verdict<Violation> {
        let calls = self.ended.iter().filter(|at| **at != END).count();
        let mut best = Violation { explained: 0, calls, at: 0 };
        let mut state = self.model.start();
        let mut seen: HashSet<(Vec<u64>, M::State)> = HashSet::new();
        let mut taken: Vec<(usize, M::State)> = Vec::new();
        let (mut at, mut explained, mut left) = (self.first, 0, steps);
        while at != END {
            if left == 0 {
                return Verdict::Unknown("the search for an order was given up");
            }
            left -= 1;
            let Moment { call, is_answer, after, .. } = self.moments[at];
            if is_answer {
                // Its call must have taken effect by now.
                if explained >= best.explained {
                    best = Violation { explained, at: call, ..best };
                }
                let Some((last, before)) = taken.pop() else { return Verdict::Invalid(best) };
                explained -= usize::from(self.ended[last] != END);
                self.put_back(last);
                state = before;
                at = self.moments[self.began[last]].after;
                continue;
            }
            let next = self.model.step(&state, &self.history[call].call);
            let new = next.filter(|next| {
                self.done[call / 64] |= 1 << (call % 64);
                let new = seen.insert((self.done.clone(), next.clone()));
                if !new {
                    self.done[call / 64] &= !(1 << (call % 64));
                }
                new
            });
            match new {
                Some(next) => {
                    taken.push((call, std::mem::replace(&mut state, next)));
                    explained += usize::from(self.ended[call] != END);
                    self.take_out(call);
                    at = self.first;
                }
                None => at = after,
            }
        }
        Verdict::Valid
    }

    fn take_out(&mut self, call: usize) {
        for at in [self.began[call], self.ended[call]].into_iter().filter(|at| *at != END) {
            let Moment { before, after, .. } = self.moments[at];
            match before {
                END => self.first = after,
                before => self.moments[before].after = after,
            }
            if after != END {
                self.moments[after].before = before;
            }
        }
    }

    fn put_back(&mut self, call: usize) {
        self.done[call / 64] &= !(1 << (call % 64));
        // In the reverse order of taking out, so that its neighbours are there.
        for at in [self.ended[call], self.began[call]].into_iter().filter(|at| *at != END) {
            let Moment { before, after, .. } = self.moments[at];
            match before {
                END => self.first = at,
                before => self.moments[before].after = at,
            }
            if after != END {
                self.moments[after].before = at;
            }
        }
    }
}
