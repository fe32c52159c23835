//! What clients and operators are told about this product (spec: README.md, section 6).

/// The product that clients see: official client libraries check it.
pub const CLIENT_PRODUCT: &str = "RabbitMQ";
/// The version whose protocol behaviour clients may expect.
pub const CLIENT_VERSION: &str = "4.3.0";
/// The product that operators see.
pub const PRODUCT: &str = "Warren";
/// Warren's own version.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
