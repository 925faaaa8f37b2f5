//! `kiln run --chat`: a conversation through the model's chat template. Each text is a turn; the template makes one prompt of
//! all that was said, of which the model reads what it has not in its cache.

use super::Speaker;
use super::model::failure;
use crate::interrupt::{self, Interrupted};
use crate::line::{self, History, Line, LineEditor};
use kiln_llm::{Error, Message};
use kiln_terminal::failure::{Failure, Outcome};
use kiln_terminal::{Paint, error_columns, hung, note};
use serde_json::json;
use std::io::{BufRead, IsTerminal, Read, Write, stderr, stdin};

const HELP: &str = "\
/help          this
/reset         forget the conversation (also /clear)
/exit          end (also /quit, /bye, Ctrl-D, Ctrl-C twice)

Ctrl-C         stop an answer, give up a text
Enter          send; a line that ends in \\ goes on in the next, and so does Alt-Enter
\"\"\"            begins a text of several lines, which ends with the next \"\"\"
Up, Down       what was said before; Ctrl-R looks for it
Ctrl-A E B F   to the beginning, to the end, a character back, forward (Alt-B, Alt-F: a word)
Ctrl-U K W     delete to the beginning, to the end, a word; Ctrl-Y puts it back
Ctrl-L         clear the screen

What is said is kept in a file of yours: KILN_HISTORY=off keeps none, KILN_HISTORY=FILE another.
A text that begins with a space is not kept.";

/// The longest line of a script: more than any context holds.
const MOST_TURN: u64 = 64 << 20;

/// What a person wants.
enum Wish {
    Say(String),
    Forget,
    Help,
    Nothing,
    Exit,
    /// A command that there is not.
    Unknown(String),
}

impl Wish {
    fn of(text: &str) -> Wish {
        let words = line::meant(text);
        let is_command = |word: &str| word.len() > 1 && word[1..].chars().all(|c| c.is_ascii_alphabetic());
        match words.trim() {
            "" => Wish::Nothing,
            "/exit" | "/quit" | "/bye" => Wish::Exit,
            "/reset" | "/clear" => Wish::Forget,
            "/help" | "/?" => Wish::Help,
            word if word.starts_with('/') && is_command(word) => Wish::Unknown(word.to_owned()),
            _ => Wish::Say(words),
        }
    }
}

/// Talks until the input ends or `/exit`.
pub fn run(speaker: &mut Speaker) -> Outcome {
    if speaker.opened.chat.is_none() {
        return Err(failure(Error::NoChatTemplate { name: speaker.opened.name.clone() }).into());
    }
    let mut conversation = beginning(speaker);
    if let Some(prompt) = &speaker.arguments.prompt {
        return match turn(speaker, &mut conversation, prompt)? {
            true => Err(Interrupted.into()),
            false => Ok(()),
        };
    }
    let mut talk = Talk { conversation, failed: 0, is_person: stdin().is_terminal() };
    if talk.is_person {
        note("/help says what there is, /exit ends, Ctrl-C stops an answer");
    }
    match line::is_usable() {
        true => talk.on_terminal(speaker)?,
        false => talk.by_lines(speaker)?,
    }
    match talk.failed {
        0 => Ok(()),
        failed => Err(Failure::new(format!("{failed} of the turns failed")).into()),
    }
}

/// A conversation of several turns.
struct Talk {
    conversation: Vec<Message>,
    /// Turns of a script that failed; a person has seen them.
    failed: usize,
    is_person: bool,
}

impl Talk {
    /// With a person who can edit.
    fn on_terminal(&mut self, speaker: &mut Speaker) -> Outcome {
        let paint = Paint::stderr();
        let mut editor = LineEditor::new(History::open())?;
        let mut is_second = false;
        loop {
            match editor.read(&format!("{} ", paint.ember("›")), 2)? {
                Line::End => return Ok(()),
                Line::Interrupted if is_second => return Err(Interrupted.into()),
                // It may have been meant for an answer that has just ended.
                Line::Interrupted => {
                    eprintln!("{}", paint.dim("Ctrl-C once more, Ctrl-D or /exit ends"));
                    is_second = true;
                }
                Line::Text(text) => {
                    is_second = false;
                    if !self.hear(speaker, &text)? {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// With a script, or on a terminal that can do nothing.
    fn by_lines(&mut self, speaker: &mut Speaker) -> Outcome {
        let mut lines = stdin().lock();
        loop {
            if self.is_person {
                eprint!("{} ", Paint::stderr().ember("›"));
                stderr().flush()?;
            }
            let (mut text, mut ended) = (String::new(), true);
            while (&mut lines).take(MOST_TURN).read_line(&mut text)? > 0 {
                ended = false;
                if text.len() as u64 >= MOST_TURN {
                    let message = format!("standard input: a line of more than {MOST_TURN} bytes");
                    return Err(Failure::unusable(message).into());
                }
                text.truncate(text.trim_end_matches(['\n', '\r']).len());
                if !line::is_open(&text) {
                    break;
                }
                text.push('\n');
            }
            if ended || !self.hear(speaker, &text)? {
                return Ok(());
            }
        }
    }

    /// A text was written; says whether the conversation goes on.
    fn hear(&mut self, speaker: &mut Speaker, text: &str) -> Result<bool, Box<dyn std::error::Error>> {
        let paint = Paint::stderr();
        let outcome = match Wish::of(text) {
            Wish::Nothing => Ok(false),
            Wish::Exit => return Ok(false),
            Wish::Help => {
                eprintln!("{}", hung(HELP, error_columns(), 15));
                Ok(false)
            }
            Wish::Forget => {
                self.conversation = beginning(speaker);
                if self.is_person {
                    eprintln!("{}", paint.dim("forgotten"));
                }
                Ok(false)
            }
            Wish::Unknown(word) => {
                Err(Failure::unusable(format!("there is no command '{word}'")).advise("/help").into())
            }
            Wish::Say(words) => turn(speaker, &mut self.conversation, &words),
        };
        match outcome {
            // A person wants another answer, a script is called off as a whole.
            Ok(interrupted) if interrupted && !self.is_person => Err(Interrupted.into()),
            Ok(_) => Ok(true),
            // What was said before stands; a shorter question may fit.
            Err(error) => {
                eprint!("{}", kiln_terminal::failure::render(error.as_ref(), paint));
                speaker.console.result(|| json!({ "error": error.to_string() }));
                self.failed += usize::from(!self.is_person);
                Ok(true)
            }
        }
    }
}

fn beginning(speaker: &Speaker) -> Vec<Message> {
    speaker.arguments.system.iter().map(|text| Message::new("system", text)).collect()
}

/// A question and its answer; says whether that was called off. A turn that fails is not part of the conversation.
fn turn(
    speaker: &mut Speaker,
    conversation: &mut Vec<Message>,
    words: &str,
) -> Result<bool, Box<dyn std::error::Error>> {
    let mut messages = conversation.clone();
    messages.push(Message::new("user", words));
    let ids = speaker.opened.chat_prompt(&messages).map_err(failure)?;
    let (answer, interrupted) = interrupt::during(|cancel| speaker.answer(&ids, cancel));
    let (told, text) = answer?;
    messages.push(Message::new("assistant", text.trim()));
    *conversation = messages;
    speaker.console.result(|| speaker.figures(&ids, &told, &text));
    Ok(interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_one_word() {
        assert!(matches!(Wish::of("/exit "), Wish::Exit) && matches!(Wish::of("/clear"), Wish::Forget));
        assert!(matches!(Wish::of("  "), Wish::Nothing) && matches!(Wish::of("/help"), Wish::Help));
        assert!(matches!(Wish::of("/rest"), Wish::Unknown(word) if word == "/rest"));
        for text in ["/usr/bin/env", "/exit now", "/", "what is /help"] {
            assert!(matches!(Wish::of(text), Wish::Say(said) if said == text), "{text}");
        }
        assert!(matches!(Wish::of("\"\"\"/exit\nor not\"\"\""), Wish::Say(said) if said == "/exit\nor not"));
    }
}
