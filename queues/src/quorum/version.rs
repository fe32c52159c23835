//! Machine versions.

use std::ops::RangeInclusive;

use warren_proto::ids::MachineVersion;

/// The first version.
pub const MV1: MachineVersion = MachineVersion(1);
/// The second version.
pub const MV2: MachineVersion = MachineVersion(2);
/// The version that a new group starts at if all its members support it.
pub const LATEST: MachineVersion = MV2;
/// What this binary can apply.
pub const SUPPORTED: RangeInclusive<MachineVersion> = MV1..=MV2;
