//! One binary, many names: `warren ctl ...`, or `rabbitmqctl ...` through a symbolic link.

/// A group of verbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tool {
    /// All verbs with a unique name.
    Ctl,
    /// Health checks and inspection.
    Diagnostics,
    /// Quorum queues.
    Queues,
    /// What comes before and after an upgrade.
    Upgrade,
}

impl Tool {
    /// The tool behind a subcommand of `warren`.
    pub fn from_subcommand(word: &str) -> Option<Self> {
        match word {
            "ctl" => Some(Tool::Ctl),
            "diagnostics" => Some(Tool::Diagnostics),
            "queues" => Some(Tool::Queues),
            "upgrade" => Some(Tool::Upgrade),
            _ => None,
        }
    }

    /// The tool that a program of this name is.
    pub fn from_program(name: &str) -> Option<Self> {
        match name {
            "rabbitmqctl" => Some(Tool::Ctl),
            "rabbitmq-diagnostics" => Some(Tool::Diagnostics),
            "rabbitmq-queues" => Some(Tool::Queues),
            "rabbitmq-upgrade" => Some(Tool::Upgrade),
            _ => None,
        }
    }
}
