//! Exit codes, the same numbers as rabbitmqctl's (sysexits.h), so that existing scripts keep working.

use std::process::ExitCode;

/// How a command ended, as the shell sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Success; a check that passed.
    Ok = 0,
    /// Wrong arguments, options, columns, verb or formatter.
    Usage = 64,
    /// A bad argument value, an object that does not exist, an unreadable file, a failed authentication.
    Data = 65,
    /// No such user.
    NoUser = 67,
    /// The node cannot be reached, refused the request, or failed the check.
    Unavailable = 69,
    /// An internal error; also "already exists" for users.
    Software = 70,
    /// The server stopped itself after a failed write or sync of its log, or since its disk does not answer.
    Io = 74,
    /// Time ran out, including the wait for a majority.
    Timeout = 75,
    /// The server cannot start until somebody does something: a configuration error, or damaged data.
    Config = 78,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}
