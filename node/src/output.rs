//! What commands print. A reader that has left (`warren ctl help | head -1`) is no error, as for any other Unix tool.

use std::fmt::Arguments;
use std::io::Write;

/// Prints text to standard output.
pub fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Prints a line to standard output.
pub fn line(text: Arguments<'_>) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{text}");
}

/// Prints a line to standard error.
pub fn error_line(text: Arguments<'_>) {
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// `println!` that does not mind if nobody reads.
macro_rules! say {
    ($($text:tt)*) => { $crate::output::line(format_args!($($text)*)) };
}

/// `eprintln!` that does not mind if nobody reads.
macro_rules! complain {
    ($($text:tt)*) => { $crate::output::error_line(format_args!($($text)*)) };
}
