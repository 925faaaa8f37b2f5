//! Disassembly of machine code.

use iced_x86::{Decoder, DecoderOptions, Formatter, IntelFormatter, Mnemonic};
use std::fmt::Write;

/// One instruction per line, addresses from the start of the code. Stops at the constants that follow the code.
///
/// ```
/// let text = kiln_cpu::disassembly::disassemble(&[0x48, 0x01, 0xd8, 0xc3]);
/// assert_eq!(text, "   0  add rax,rbx\n   3  ret\n");
/// ```
pub fn disassemble(code: &[u8]) -> String {
    let mut decoder = Decoder::with_ip(64, code, 0, DecoderOptions::NONE);
    let mut formatter = IntelFormatter::new();
    let mut text = String::new();
    while decoder.can_decode() {
        let instruction = decoder.decode();
        let _ = write!(text, "{:4x}  ", instruction.ip());
        formatter.format(&instruction, &mut text);
        text.push('\n');
        // Generated code has one exit, at its end.
        if instruction.mnemonic() == Mnemonic::Ret {
            break;
        }
    }
    text
}
