//! Names as people read them. A name that is written with characters of other scripts, with wide or mathematical letters, or with
//! marks on its letters still reads as the word that the operator forbids.
//!
//! A character is first taken apart (Unicode's compatibility decomposition), and the marks on it are dropped. What is left may
//! be read in up to three ways: as itself without its case, and as what it looks like.

use std::iter;
use std::sync::LazyLock;

use arrayvec::ArrayVec;
use icu_normalizer::DecomposingNormalizerBorrowed;
use icu_properties::CodePointMapData;
use icu_properties::props::{GeneralCategory, GeneralCategoryGroup};

use crate::model::is_invisible;

/// The most characters that one is taken apart into: U+FDFA, an Arabic sentence.
const PARTS_MAX: usize = 18;

/// The ways to read a character; the first one fills the rest.
pub type Readings = [char; 3];

/// Characters that look like a letter or a digit of ASCII and are not taken apart into it. Chosen from Unicode's list of
/// confusable characters, and from the letters of other scripts that people write names with.
const LOOKALIKES: &[(char, &str)] = &[
    ('a', "ɑαаᴀ⍺ꭺᎪᗅꓮΑАⱥȺ"),
    ('b', "ʙƄƅΒβВвЬьᏴᏼᗷᖯꓐƀɃ"),
    ('c', "ςсᴄꮯСᏟꓚⲤⲥɔƆ"),
    ('d', "ԁɗᏧᎠᗞᗪꓒꓓᴅđĐ"),
    ('e', "еЕҽєЄεΕᎬꓰᴇⴹꬲɛɇɆ"),
    ('f', "ϝϜғҒꓝᖴƒꬵꞘꞙꜰ"),
    ('g', "ɡɢցԌᏀᏳꓖǥǤ"),
    ('h', "һҺНнΗհᎻᏂᕼꓧʜħĦⲎ"),
    ('i', "іІιΙɩıᎥɪӀꙇ⍳ɨƗⲒ"),
    ('j', "јЈϳͿᎫᒍꓙᴊɉɈ"),
    ('k', "кКκΚᏦᛕꓗᴋⲔⲕ"),
    ('l', "ӏǀƖ∣ᒪᏞꓡʟןłŁⳐ"),
    ('m', "мМΜᎷᗰꓟᴍϺⲘ"),
    ('n', "ոռпηΝɴꓠᴨИиⲚ"),
    ('o', "оОοΟօՕσᴏᴑ〇๐໐੦૦୦౦ⲟⲞꓳⵔøØөӨθΘɵ"),
    ('p', "рРρΡᏢᑭꓑᴘⲣⲢ"),
    ('q', "ԛԚգզⵕ"),
    ('r', "гГяЯᴦⲅꭇᎡᏒꓣʀ"),
    ('s', "ѕЅꜱՏᏕᏚꓢƽꮪ"),
    ('t', "тТτΤᎢꓔᴛⲦŧŦ"),
    ('u', "սՍυᴜꓴꭎꭒᑌʋ∪цЦʉɄ"),
    ('v', "νѵѴᴠ∨ⴸᏙᐯꓦⱱ"),
    ('w', "ԝԜшШщЩᴡɯաѡѠωᎳᏔꓪⲱ"),
    ('x', "хХχΧ×ᚷ᙮ꓫⲬⲭ"),
    ('y', "уУγΥүҮʏᎩᎽꓬⲨ"),
    ('z', "ᴢΖᏃꓜʐⲌƶƵ"),
    ('3', "зЗӡӠƷʒȝȜ"),
    ('6', "бᏮ"),
    ('8', "ȢȣՑ"),
];

/// The same by the character, sorted.
static BY_CHARACTER: LazyLock<Vec<(char, char)>> = LazyLock::new(|| {
    let each = LOOKALIKES.iter().flat_map(|(letter, others)| others.chars().map(|other| (other, *letter)));
    let mut all: Vec<_> = each.collect();
    all.sort_unstable();
    all
});

/// A character taken apart: what is visible of it, without marks.
pub fn letters(c: char) -> ArrayVec<char, PARTS_MAX> {
    // Hangul syllables stay whole: each is one character to whoever counts them.
    if c.is_ascii() || matches!(c, '\u{ac00}'..='\u{d7a3}') {
        return ArrayVec::from_iter([c]);
    }
    let is_mark = |c: char| GeneralCategoryGroup::Mark.contains(CodePointMapData::<GeneralCategory>::new().get(c));
    let parts = DecomposingNormalizerBorrowed::new_nfkd().normalize_iter(iter::once(c));
    parts.filter(|part| !is_invisible(*part) && !is_mark(*part)).take(PARTS_MAX).collect()
}

/// How a character of a name may be read.
pub fn readings(c: char) -> Readings {
    let own = fold(c);
    match c {
        '0' => ['0', 'o', 'o'],
        '1' | '|' => [c, 'l', '1'],
        'l' => ['l', '1', '1'],
        'I' => ['i', 'l', '1'],
        'O' => ['o', '0', '0'],
        c if c.is_ascii() => [own; 3],
        _ => match looks_like(c) {
            Some('o') => [own, 'o', '0'],
            Some('i' | 'l') => [own, 'i', 'l'],
            Some(letter) => [own, letter, letter],
            None => [own; 3],
        },
    }
}

/// Which readings a character of a pattern accepts. A pattern has no case, so a letter of another script also stands for what its
/// capital looks like.
pub fn accepted(c: char) -> Readings {
    let capital = c.to_uppercase().next().unwrap_or(c);
    let foreign = |c: char| Some(c).filter(|c| !c.is_ascii()).and_then(looks_like);
    let own = fold(c);
    [own, foreign(c).unwrap_or(own), foreign(capital).unwrap_or(own)]
}

/// The letter or digit of ASCII that a character of another script looks like.
fn looks_like(c: char) -> Option<char> {
    let in_a_box = |first: char| char::from_u32(u32::from('a') + u32::from(c).wrapping_sub(u32::from(first)));
    match c {
        '\u{1f150}'..='\u{1f169}' => in_a_box('\u{1f150}'),
        '\u{1f170}'..='\u{1f189}' => in_a_box('\u{1f170}'),
        // Halves of flags.
        '\u{1f1e6}'..='\u{1f1ff}' => in_a_box('\u{1f1e6}'),
        _ => {
            let at = BY_CHARACTER.binary_search_by_key(&c, |(character, _)| *character).ok()?;
            BY_CHARACTER.get(at).map(|(_, letter)| *letter)
        }
    }
}

/// A character without its case. One character always, so that a `?` is one character.
pub fn fold(c: char) -> char {
    let mut lower = c.to_lowercase();
    match (lower.next(), lower.next()) {
        (Some(lower), None) => lower,
        _ => c,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_each_character_once_and_none_that_is_taken_apart() {
        for pair in BY_CHARACTER.windows(2) {
            assert_ne!(pair[0].0, pair[1].0, "{pair:?}");
        }
        for (c, letter) in BY_CHARACTER.iter() {
            assert!(!c.is_ascii() && letters(*c)[..] == [*c], "{c} {letter}: {:?}", letters(*c));
        }
    }

    #[test]
    fn no_character_has_more_parts_than_there_is_room_for() {
        let nfkd = DecomposingNormalizerBorrowed::new_nfkd();
        let most = ('\0'..=char::MAX).map(|c| nfkd.normalize_iter(iter::once(c)).count()).max();
        assert_eq!(most, Some(PARTS_MAX));
    }
}
