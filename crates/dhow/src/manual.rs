//! `dhow completions` and `dhow man`: made from the description of the command line, so that they say what it does.

use crate::cli::Cli;
use crate::exit::{Failure, Outcome};
use clap::{Command, CommandFactory};
use clap_complete::Shell;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Writes the completions of a shell to standard output.
pub fn completions(shell: Shell) -> Outcome {
    let mut out = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "dhow", &mut out);
    print(&out)
}

/// Writes the manual page of `dhow`, or of one command, to standard output; or all of them to a directory.
pub fn man(of: Option<&str>, dir: Option<&Path>) -> Outcome {
    let mut root = Cli::command();
    // Names of the commands as they are typed: `dhow admin clients`.
    root.build();
    let pages = pages(&root);
    if let Some(dir) = dir {
        std::fs::create_dir_all(dir).map_err(|e| Failure::failed(format!("{}: {e}", dir.display())))?;
        for (name, command) in pages {
            let path: PathBuf = dir.join(format!("{name}.1"));
            std::fs::write(&path, page(command)?).map_err(|e| Failure::failed(format!("{}: {e}", path.display())))?;
        }
        return Ok(());
    }
    let wanted = of.map_or_else(|| "dhow".to_owned(), |of| format!("dhow-{}", of.replace(' ', "-")));
    match pages.into_iter().find(|(name, _)| *name == wanted) {
        Some((_, command)) => print(&page(command)?),
        None => Err(Failure::usage(format!("there is no command `{}`", of.unwrap_or_default()))),
    }
}

/// Every command with a page of its own, by the name of the page: those that are shown in help.
fn pages(root: &Command) -> Vec<(String, Command)> {
    let mut all = Vec::new();
    let mut todo = vec![("dhow".to_owned(), root.clone())];
    while let Some((name, command)) = todo.pop() {
        for sub in command.get_subcommands().filter(|s| !s.is_hide_set()) {
            todo.push((format!("{name}-{}", sub.get_name()), sub.clone()));
        }
        all.push((name, command));
    }
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

fn page(command: Command) -> Outcome<Vec<u8>> {
    let mut out = Vec::new();
    let command = command.version(env!("CARGO_PKG_VERSION"));
    clap_mangen::Man::new(command).render(&mut out).map_err(Failure::failed)?;
    Ok(out)
}

/// A reader that has gone away is no error.
fn print(bytes: &[u8]) -> Outcome {
    match std::io::stdout().lock().write_all(bytes) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => Err(e.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[test]
    fn every_command_has_a_page() {
        let mut root = Cli::command();
        root.build();
        let pages = pages(&root);
        let names: Vec<&str> = pages.iter().map(|p| p.0.as_str()).collect();
        for name in ["dhow", "dhow-serve", "dhow-cp", "dhow-admin", "dhow-admin-expire", "dhow-bench-copy"] {
            assert!(names.contains(&name), "{names:?}");
        }
        for (name, command) in pages {
            let text = String::from_utf8(page(command).unwrap()).unwrap();
            assert!(text.contains(".SH SYNOPSIS") && text.contains(&format!(".TH {name} 1")), "{name}: {text}");
        }
    }

    /// Every command and configuration that README.md and the pages of the manual show is one that is taken.
    #[test]
    fn what_the_manual_shows_is_understood() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut pages = vec![root.join("README.md")];
        pages.extend(std::fs::read_dir(root.join("docs")).unwrap().map(|e| e.unwrap().path()));
        let mut seen = 0;
        for page in pages {
            let text = std::fs::read_to_string(&page).unwrap().replace("\\\n", " ");
            // Every second part lies between fences.
            let blocks: Vec<&str> = text.split("```").skip(1).step_by(2).collect();
            for config in blocks.iter().filter_map(|b| b.strip_prefix("toml\n")) {
                let wrong = crate::config::Config::parse(config, "it").err().map(|e| e.to_string());
                assert_eq!(wrong, None, "{}: {config}", page.display());
            }
            for block in blocks.iter().filter(|b| b.starts_with("sh\n")) {
                for line in block.lines().map(|l| l.replace("cargo run --release -- ", "dhow ")) {
                    let command = line.split(['#', '|', '>', ';']).next().unwrap_or_default();
                    let Some(at) = command.find("dhow ").filter(|at| !command[..*at].contains(['/', '='])) else {
                        continue;
                    };
                    if command.starts_with("cargo") || command.starts_with("podman") {
                        continue;
                    }
                    seen += 1;
                    let words: Vec<&str> = command[at..].split_whitespace().collect();
                    let wrong = crate::cli::Cli::try_parse_from(&words).err();
                    assert!(
                        wrong.is_none(),
                        "{}: `{command}`: {}",
                        page.display(),
                        crate::cli::one_line(&wrong.unwrap())
                    );
                }
            }
        }
        assert!(seen > 40, "{seen} commands were found");
    }
}
