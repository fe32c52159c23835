//! One seed is one run.

use warren_sim::plan::{Defect, Profile};
use warren_sim::run::{Watch, run};

#[test]
fn a_seed_run_twice_gives_the_same_journal() {
    for (seed, profile) in [(1, Profile::Ci), (2, Profile::Swarm), (3, Profile::Wild)] {
        let once = run(seed, profile, Defect::None, Watch::default());
        assert_eq!(once, run(seed, profile, Defect::None, Watch::default()));
        assert_ne!(once.digest, run(seed + 10, profile, Defect::None, Watch::default()).digest);
    }
}
