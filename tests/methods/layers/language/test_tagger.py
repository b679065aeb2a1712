import pytest

from ctvr.methods.layers.language.tagger import AUXILIARY, NOUN, OTHER, VERB, base_form, kind_of, tag

# Written and labeled by hand for this test, in the manner of MSR-VTT; the last lines are the embedded stream's.
# N noun, V verb, X auxiliary; a word without a label is neither.
CAPTIONS = """
a boy/N is/X performing/V for an audience/N
a man/N plays/V the violin/N on a dark stage/N
two dogs/N chase/V a ball/N across the park/N
a woman/N explains/V how to fold/V a paper/N crane/N
the video/N shows/V a train/N entering/V a station/N
someone is/X chopping/V carrots/N with a sharp knife/N
people/N dance/V in the street/N during a festival/N
a cooking/V show/N about italian bread/N
a clip/N of a soccer/N match/N
a girl/N in a yellow coat/N walks/V her dog/N
an old man/N talks/V about his life/N
the chef/N adds/V salt/N and stirs/V the soup/N
a group/N of children/N are/X singing/V together
a car/N drives/V quickly down the highway/N
a band/N performs/V a song/N on a large stage/N
a player/N kicks/V the ball/N into the net/N
kids/N jump/V on a trampoline/N and laugh/V
a person/N has/X painted/V the wall/N green
a reporter/N who works/V in london/N interviews/V a farmer/N
a cat/N does/X not want/V to take/V a bath/N
the drummer/N can/X play/V very fast
a lady/N shows/V her new phone/N to the camera/N
there is/X a small house/N near the lake/N
a video/N game/N character/N climbs/V a tower/N
a young couple/N watches/V a movie/N at home/N
a surfer/N rides/V a huge wave/N
several men/N wearing/V helmets/N work/V on a roof/N
the dog/N that barks/V at the door/N is/X brown
she looks/V at a painting/N and smiles/V
a teacher/N writes/V numbers/N on the board/N
a plate/N of food/N sits/V on the table/N
a student/N gives/V a speech/N in front/N of her class/N
the singer/N was/X given/V an award/N
a bird/N flies/V over the sea/N while the sun/N sets/V
a monkey/N eats/V a banana/N and throws/V the peel/N away
cartoon/N animals/N run/V through the forest/N
a fashion/N model/N walks/V down the runway/N
a mother/N feeds/V her baby/N with a spoon/N
a mechanic/N repairs/V the engine/N of a truck/N
a skater/N falls/V during a trick/N
they are/X trying/V to open/V a heavy box/N
a boy/N opens/V the door/N and leaves/V
a review/N of a fast red car/N
a dancer/N spins/V on one leg/N
a judge/N asks/V the contestants/N some questions/N
a family/N is/X having/V dinner/N
the man/N in the blue shirt/N is/X very tired
a tutorial/N on painting/V your nails/N
a woman/N painting/V a portrait/N of a king/N
a horse/N races/V another horse/N
water/N is/X poured/V into a glass/N
hands/N mixing/V flour/N and eggs/N in a bowl/N
a hiker/N reaches/V the top/N of a mountain/N
a comedian/N tells/V jokes/N to a crowd/N
students/N study/V in a quiet library/N
a purple truck/N starts/V behind and then overtakes/V a small pink runner/N on a grey road/N
a small cyan star/N leads/V and a red toy/N follows/V to the left/N
first a red gem/N flashes/V and then a large bar/N flashes/V
a green leaf/N turns/V purple near an orange bug/N
a large white boat/N sails/V from left to right past a black buoy/N on the ocean/N
two pieces/N merge/V into a blue cell/N over a virus/N
the camera/N zooms/V in on a yellow pyramid/N and a pink cactus/N
a red square/N drops/V into view/N from the top/N and lands/V near a ring/N
it gets/V brighter while a small heart/N stays/V by a circle/N
""".strip().splitlines()


def labelled(line: str) -> tuple[tuple[str, ...], str]:
    """Return words and their true tags."""
    pairs = [piece.partition("/") for piece in line.split()]
    return tuple(word for word, _, _ in pairs), "".join(label or OTHER for _, _, label in pairs)


def test_at_least_97_words_of_a_hundred_are_right():
    truth = found = ""
    for line in CAPTIONS:
        words, labels = labelled(line)
        truth += labels
        found += tag(words)
    wrong = sum(a != b for a, b in zip(truth, found))
    assert len(CAPTIONS) >= 60
    assert wrong <= 0.03 * len(truth)


@pytest.mark.parametrize("label", [NOUN, VERB])
def test_nouns_and_verbs_are_found_and_nothing_else_is(label):
    hits = claimed = present = 0
    for line in CAPTIONS:
        words, labels = labelled(line)
        tags = tag(words)
        hits += sum(a == b == label for a, b in zip(labels, tags))
        claimed += tags.count(label)
        present += labels.count(label)
    assert hits >= 0.95 * claimed
    assert hits >= 0.95 * present


@pytest.mark.parametrize(
    ("caption", "word", "expected"),
    [
        ("a dance on a stage", "dance", NOUN),
        ("people dance on a stage", "dance", VERB),
        ("she wants to dance", "dance", VERB),
        ("he cooks food", "cooks", VERB),
        ("two cooks in a kitchen", "cooks", NOUN),
        ("a man is painting", "painting", VERB),
        ("a large painting", "painting", NOUN),
        ("a man has a hat", "has", VERB),
        ("a man has seen a hat", "has", AUXILIARY),
        ("he can swim", "can", AUXILIARY),
        ("he opens a can of beans", "can", NOUN),
        ("the dog 's bowl", "'s", OTHER),
        ("a lovely family", "family", NOUN),
        ("he walks slowly", "slowly", OTHER),
    ],
)
def test_the_same_word_is_judged_by_its_place(caption, word, expected):
    words = tuple(caption.split())
    assert tag(words)[words.index(word)] == expected


def test_unknown_words_are_judged_by_their_ending_and_else_are_nouns():
    words = ("a", "blorf", "is", "flibbering", "the", "wugless", "snorks")
    assert tag(words) == "-NXV--N"


@pytest.mark.parametrize(("word", "base"), [("tries", "try"), ("watches", "watch"), ("makes", "make"), ("bus", "bus")])
def test_forms_in_s_are_traced_to_their_verb(word, base):
    assert base_form(word) == base


def test_numbers_and_marks_are_no_keywords():
    assert tag(("3", "-", "!", "5")) == "----"
    assert tag(()) == ""


def test_an_accent_or_another_script_does_not_stop_it():
    assert kind_of("café") is kind_of("猫")
    assert tag(("猫",)) == NOUN
