//! The screen on a made-up terminal: what is drawn, and what keys do.

use super::*;
use crate::model::{Details, Facts, Game, Player};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use std::sync::Arc;

fn server(port: u16, name: &'static str, players: u16) -> Found {
    let details = Details {
        players: vec![Player { name: "Ann".into(), score: Some(14), ..Player::default() }],
        rules: vec![("fraglimit".into(), "20".into())],
    };
    let facts = Facts {
        name: name.into(),
        map: "Two clans".into(),
        players_current: Some(players),
        players_max: Some(8),
        details: Some(Arc::new(details)),
        ..Facts::default()
    };
    Found { facts, ..Found::new(Game::Own("netpanzer"), format!("203.0.113.5:{port}").parse().unwrap()) }
}

fn drawn(screen: &mut Screen) -> String {
    drawn_on(screen, 90, 18)
}

fn drawn_on(screen: &mut Screen, columns: u16, rows: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
    terminal.draw(|frame| screen.draw(frame)).unwrap();
    terminal.backend().to_string()
}

fn press(screen: &mut Screen, keys: &[KeyCode]) -> Action {
    let presses = keys.iter().map(|key| screen.on(&Event::Key(KeyEvent::from(*key))));
    presses.last().unwrap()
}

fn typed(screen: &mut Screen, text: &str) {
    for typed in text.chars() {
        press(screen, &[KeyCode::Char(typed)]);
    }
}

fn with(found: Vec<Found>) -> Screen {
    let mut screen = Screen::new("netpanzer://master".into(), &Selection::default(), true);
    screen.refresh_finished(Ok(found));
    screen
}

fn three() -> Screen {
    with(vec![server(1, "Alpha", 0), server(2, "beta", 5), server(3, "Gamma", 8)])
}

/// Where each text is on the screen, from the top.
fn lines(text: &str, shown: &str) -> Vec<usize> {
    shown.lines().enumerate().filter(|(_, line)| line.contains(text)).map(|(number, _)| number).collect()
}

#[test]
fn the_list_with_most_players_first() {
    let mut screen = three();
    let shown = drawn(&mut screen);
    assert!(shown.contains("netpanzer://master ") && shown.contains("3 servers, 13 players, by players"), "{shown}");
    let places = ["Gamma", "beta", "Alpha"].map(|name| lines(name, &shown)[0]);
    assert!(places.is_sorted(), "{shown}");
    assert!(shown.contains("203.0.113.5:2"), "the address: {shown}");
    assert!(shown.contains("5/8") && shown.contains("Two clans") && shown.contains("q quit"), "{shown}");
    assert_eq!(press(&mut screen, &[KeyCode::Char('r')]), Action::Refresh);
    assert_eq!(press(&mut screen, &[KeyCode::Char('q')]), Action::Quit);
}

#[test]
fn keys_sort_leave_out_and_search() {
    let mut screen = three();
    typed(&mut screen, "s");
    let shown = drawn(&mut screen);
    assert!(shown.contains("by map"), "{shown}");
    typed(&mut screen, "ef");
    let shown = drawn(&mut screen);
    assert!(shown.contains("1 server, 5 players") && shown.contains("beta") && !shown.contains("Gamma"), "{shown}");
    typed(&mut screen, "ef/GAM");
    let shown = drawn(&mut screen);
    assert!(shown.contains("/GAM▏") && shown.contains("Gamma") && !shown.contains("beta"), "{shown}");
    typed(&mut screen, "q");
    assert!(drawn(&mut screen).contains("No servers match."));
    press(&mut screen, &[KeyCode::Backspace, KeyCode::Enter]);
    assert!(drawn(&mut screen).contains("Gamma"));
    assert_eq!(press(&mut screen, &[KeyCode::Esc]), Action::Nothing);
    assert!(drawn(&mut screen).contains("3 servers"));
    // Over a slow line an arrow key arrives as Esc and two characters.
    assert_eq!(press(&mut screen, &[KeyCode::Esc, KeyCode::Char('['), KeyCode::Char('B')]), Action::Nothing);
}

#[test]
fn the_selected_server_stays_chosen_and_opens() {
    let mut screen = three();
    press(&mut screen, &[KeyCode::Down]);
    screen.refresh_finished(Ok(vec![server(2, "beta", 8), server(4, "new", 1), server(3, "Gamma", 2)]));
    press(&mut screen, &[KeyCode::Enter]);
    let shown = drawn(&mut screen);
    assert!(shown.contains("netpanzer://203.0.113.5:2") && shown.contains("fraglimit"), "{shown}");
    assert!(shown.contains("Ann  14"), "{shown}");
    press(&mut screen, &[KeyCode::Esc, KeyCode::End, KeyCode::PageUp, KeyCode::Home, KeyCode::Up]);
    screen.refresh_finished(Err(ListError::Bad("it is gone".into())));
    let shown = drawn(&mut screen);
    assert!(shown.contains("it is gone") && shown.contains("beta"), "what was known stays: {shown}");
    screen.refresh_finished(Ok(Vec::new()));
    press(&mut screen, &[KeyCode::Down, KeyCode::Enter]);
    assert!(drawn(&mut screen).contains("No servers are listed."));
}

fn many(count: u16) -> Vec<Found> {
    (1..=count).map(|port| server(port, "Many", 1)).collect()
}

#[test]
fn a_terminal_that_grows_has_no_blank_rows() {
    let mut screen = with(many(30));
    press(&mut screen, &[KeyCode::End]);
    let shown = drawn_on(&mut screen, 80, 10);
    assert_eq!(lines("Many", &shown).len(), 6, "{shown}");
    let shown = drawn_on(&mut screen, 80, 24);
    assert_eq!(lines("Many", &shown).len(), 20, "{shown}");
    // Nor has a list that shrinks.
    screen.refresh_finished(Ok(many(20)));
    let shown = drawn_on(&mut screen, 80, 24);
    assert_eq!(lines("Many", &shown).len(), 20, "{shown}");
}

#[test]
fn every_size_can_be_drawn() {
    let mut screen = with(many(30));
    let error = "a reason that is longer than a line of a small terminal, and goes on for a while";
    screen.refresh_finished(Err(ListError::Bad(error.into())));
    for keys in ["", "\n", "?", " /abc", "\n"] {
        for key in keys.chars() {
            press(&mut screen, &[if key == '\n' { KeyCode::Enter } else { KeyCode::Char(key) }]);
        }
        for (columns, rows) in (0..40).flat_map(|columns| (0..16).map(move |rows| (columns, rows))) {
            let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
            terminal.draw(|frame| screen.draw(frame)).unwrap();
        }
    }
}

#[test]
fn the_list_is_there_before_the_answers_and_each_row_as_it_comes() {
    let mut screen = Screen::new("netpanzer://master".into(), &Selection::default(), true);
    screen.refresh_started();
    assert!(drawn(&mut screen).contains("Waiting for the list."));
    let named = |port: u16| Found::new(Game::Own("netpanzer"), format!("203.0.113.5:{port}").parse().unwrap());
    screen.listed(vec![named(1), named(2)]);
    let shown = drawn(&mut screen);
    assert_eq!(lines("(querying)", &shown).len(), 2, "{shown}");
    assert!(shown.contains("querying 2") && shown.contains("203.0.113.5:1"), "{shown}");
    screen.answered(&[server(2, "beta", 5)]);
    let shown = drawn(&mut screen);
    assert!(
        shown.contains("querying 1") && shown.contains("beta") && lines("(querying)", &shown).len() == 1,
        "{shown}"
    );
    let silent = Found { state: State::Failed("no answer".into()), ..named(1) };
    screen.refresh_finished(Ok(vec![silent, server(2, "beta", 5)]));
    let shown = drawn(&mut screen);
    assert!(shown.contains("(no answer)") && shown.contains("silent") && shown.contains("0 s ago"), "{shown}");
    // The next look takes away nothing that is known.
    screen.refresh_started();
    screen.listed(vec![named(1), named(2), named(3)]);
    let shown = drawn(&mut screen);
    assert!(shown.contains("beta") && shown.contains("silent") && lines("(querying)", &shown).len() == 1, "{shown}");
    // Nor does silence the name.
    let silent = Found { state: State::Failed("no answer".into()), ..named(2) };
    screen.answered(&[silent]);
    let shown = drawn(&mut screen);
    assert!(shown.contains("beta") && !shown.contains("5/8") && lines("silent", &shown).len() == 2, "{shown}");
}

#[test]
fn the_first_row_is_chosen_until_somebody_chooses() {
    let mut screen = with(vec![server(1, "Alpha", 1)]);
    screen.refresh_finished(Ok(vec![server(1, "Alpha", 1), server(2, "beta", 5)]));
    assert_eq!(screen.selected_server().map(|server| server.address.port()), Some(2));
    press(&mut screen, &[KeyCode::Down]);
    screen.refresh_finished(Ok(vec![server(1, "Alpha", 9), server(2, "beta", 5)]));
    assert_eq!(screen.selected_server().map(|server| server.address.port()), Some(1));
}

#[test]
fn errors_are_whole() {
    let words: Vec<String> = (1..=30).map(|number| format!("word{number}")).collect();
    let mut screen = three();
    screen.refresh_finished(Err(ListError::Bad(words.join(" "))));
    let shown = drawn_on(&mut screen, 60, 24);
    assert!(words.iter().all(|word| shown.contains(word.as_str())), "{shown}");
    let failed = Found { state: State::Failed(words.join(" ")), ..server(1, "Alpha", 1) };
    screen.refresh_finished(Ok(vec![failed]));
    press(&mut screen, &[KeyCode::Enter]);
    let shown = drawn_on(&mut screen, 60, 24);
    assert!(words.iter().all(|word| shown.contains(word.as_str())), "{shown}");
}

#[test]
fn long_details_scroll() {
    let rules = (1..=40).map(|number| (format!("rule{number}").into(), "on".into())).collect();
    let mut one = server(1, "Alpha", 1);
    one.facts.details = Some(Arc::new(Details { players: Vec::new(), rules }));
    let mut screen = with(vec![one]);
    press(&mut screen, &[KeyCode::Enter]);
    let shown = drawn_on(&mut screen, 80, 24);
    assert!(shown.contains("rule1 ") && !shown.contains("rule40") && shown.contains("of 43 lines"), "{shown}");
    for _ in 0..9 {
        press(&mut screen, &[KeyCode::PageDown]);
        drawn_on(&mut screen, 80, 24);
    }
    let shown = drawn_on(&mut screen, 80, 24);
    assert!(shown.contains("rule40") && shown.contains("43 of 43 lines"), "{shown}");
    press(&mut screen, &[KeyCode::PageUp; 9]);
    assert!(drawn_on(&mut screen, 80, 24).contains("rule1 "));
}

#[test]
fn help_names_every_key_and_long_names_are_cut() {
    let mut screen = with(vec![server(1, "A server with a name that is far too long for any list on a terminal", 1)]);
    let shown = drawn_on(&mut screen, 80, 24);
    assert!(shown.contains("… 203.0.113.5:1"), "{shown}");
    typed(&mut screen, "?");
    let shown = drawn_on(&mut screen, 80, 24);
    for (keys, what) in KEYS {
        assert!(shown.contains(keys) && shown.contains(what), "{keys}: {shown}");
    }
    typed(&mut screen, "q");
    assert!(!drawn_on(&mut screen, 80, 24).contains("Ctrl-Z"), "any key closes it");
    let control = |key| Event::Key(KeyEvent::new(KeyCode::Char(key), KeyModifiers::CONTROL));
    let actions = ['c', 'z', 'l', 'x'].map(|key| screen.on(&control(key)));
    assert_eq!(actions, [Action::Quit, Action::Suspend, Action::Redraw, Action::Nothing]);
}

#[test]
fn details_on_a_low_terminal_show_a_line_at_least() {
    let mut screen = three();
    press(&mut screen, &[KeyCode::Enter]);
    for rows in 8..=14 {
        let shown = drawn_on(&mut screen, 40, rows);
        assert_eq!(lines("netpanzer://203.0.113.5:3", &shown).len(), 1, "{rows}:\n{shown}");
        assert!(lines("Gamma", &shown).len() >= 2, "the row and the frame, at {rows}:\n{shown}");
    }
}
