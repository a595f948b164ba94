//! What the tests share: tolerances, comparison, shapes, the device under test.
