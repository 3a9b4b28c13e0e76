"""Words that the rules for phrases know; all others are taken for nouns."""

from __future__ import annotations

from typing import Literal

Tag = Literal["noun", "attribute", "verb", "preposition", "determiner", "adverb", "other", "be"]


def _listed(words: str) -> frozenset[str]:
    return frozenset(words.split())


def _phrases(listed: str) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(phrase.split()) for phrase in listed.split("|"))


DETERMINERS = _listed(
    "a an the this that these those his her its their my your our another each every some any no "
    "all both either neither other"
)
PRONOUNS = _listed(
    "i you he she it we they me him them us himself herself itself themselves who whom which what "
    "something someone somebody anything nothing everything everyone nobody else others "
    "there here"
)
BE = _listed("is are was were be been being am 's 're can could will would may might must do does")
OTHER = _listed(
    "and or but nor so if when while as than because although though since until unless whether "
    "where how why not n't to of ' also very too well just only even etc yet plus see"
)
NUMBERS = _listed(
    "one two three four five six seven eight nine ten eleven twelve dozen hundred hundreds "
    "thousand several many few multiple numerous various single double pair couple"
)
ADVERBS = _listed(
    "together outdoors indoors away back forward backward backwards apart alone "
    "ahead aside nearby overhead upside downhill uphill upwards downwards sideways now then again "
    "almost almost still already always never often quite rather really exactly high low fast "
    "midair mid-air today"
)
PREPOSITIONS = _listed(
    "in on at by with without for from into onto over under above below beneath underneath "
    "beside besides between among amongst behind against along across around through throughout "
    "toward towards near off up down past beyond before after during about amid atop aboard "
    "inside outside within upon opposite alongside like out via"
)
COMPOUND = _phrases(
    "to the left side of|to the right side of|on the left side of|on the right side of|"
    "on the left hand side of|on the right hand side of|to the left of|to the right of|"
    "on the left of|on the right of|on the side of|on the edge of|on the back of|"
    "in the middle of|in the center of|in the back of|in the front of|at the top of|"
    "at the bottom of|at the end of|at the edge of|on the other side of|by the side of|"
    "in front of|in back of|on top of|on top|next to|close to|left of|right of|out of|"
    "outside of|inside of|higher than|lower than|bigger than|smaller than|away from|far from|"
    "along side of|along with|together with|in between|up to|down from|up against|near to|"
    "to its left|to its right|to their left|to their right|on its left|on its right|"
    "on their left|on their right|on the left|on the right|to the left|to the right"
)
COMPOUND_BY = {  # by first word
    first: tuple(words for words in COMPOUND if words[0] == first)
    for first in {words[0] for words in COMPOUND}
}
JOINED = (("as", "well", "as"), ("along", "with"), ("together", "with"))  # no relations: "and"
OPENINGS = _phrases(
    "there is|there are|here is|here are|we see|we can see|you see|you can see|"
    "a picture of|a picture with|an image of|an image with|an image showing|a picture showing|"
    "the picture shows|this picture shows|this image shows|the image shows|a photo of|"
    "a photograph of|a view of|a close up of|a closeup of|a close-up of|a shot of|"
    "a black and white photo of|a black and white photograph of|a black and white picture of|"
    "this is|this is a picture of|this is a photo of|this is an image of|these are|it is|"
    "the photo shows|a picture containing"
)
PATTERNS = _listed(
    "stripes dots spots checks stripe polka-dots"
)  # "with stripes" is said of a thing
ATTRIBUTES = _listed(
    "red orange yellow green blue purple pink black white brown gray grey violet tan beige golden "
    "gold silver blond blonde brunette redheaded maroon turquoise teal navy crimson lavender "
    "colorful colored coloured colourful multicolored multi-colored multicolor dark light bright "
    "pale big large small little tiny huge giant tall short long wide narrow thin thick fat skinny "
    "slim heavy massive enormous mini medium medium-sized middle-aged young old elderly older "
    "younger new adult teenage female male baby toddler happy sad angry smiling excited tired busy "
    "crowded empty full open closed wet dry dirty clean muddy dusty sandy grassy snowy icy rocky "
    "rainy sunny cloudy foggy stormy wooden metal metallic plastic glass stone concrete leather "
    "brick paved furry fluffy hairy curly bald shaggy spotted striped stripy dotted checked "
    "checkered checkerboard plaid plain solid floral flowered patterned decorative ornate fancy "
    "shiny smooth rough soft hard hot cold warm cool frozen fresh raw cooked delicious sweet "
    "beautiful pretty cute nice ugly handsome lovely modern ancient vintage rustic antique bare "
    "naked nude shirtless barefoot topless hooded bearded asian african american indian "
    "chinese japanese mexican european oriental caucasian hispanic french english german british "
    "professional public private local urban rural tropical steep flat shallow deep calm rough "
    "choppy blurry blurred clear round square rectangular circular triangular oval curved "
    "straight stuffed broken torn abandoned lit lighted different same "
    "similar main first second third last next top bottom upper lower left right middle front rear "
    "back whole half entire lone solo sole dead alive asleep awake ready serious funny strange "
    "unusual colored wild domestic stray electric electrical digital military green-and-white "
    "traditional casual formal athletic plump pregnant homeless foreign famous other-worldly "
    "identical mixed assorted numerous lush leafy bushy dense scenic remote distant high low "
    "opposing opposite rival competing"
)
VERBS = _listed(
    "run walk jump sit stand ride play hold look wear eat drink swim climb catch throw kick hit "
    "ski surf skateboard skate snowboard smile laugh talk speak watch stare point push pull carry "
    "drive fly fall leap lie lay sleep rest pose wait work cook cut paint draw write read sing "
    "dance perform race chase follow lead cross enter leave approach reach touch grab bite lick "
    "chew sniff bark dig roll slide swing spin hang float splash dive paddle row sail fish hunt "
    "shoot aim fight wrestle box tackle kneel crouch squat lean bend stretch hug kiss wave clap "
    "cheer celebrate gather share give take make get go come do have use show say tell put "
    "place set pick hike bike cycle jog sprint hurdle tumble flip practice train compete dribble "
    "pass bat pitch serve bowl golf juggle balance grind perch soar land drop lift raise open "
    "close turn move travel stroll march crawl wade bathe wash clean brush feed pet groom shop "
    "sell buy bring build fix repair load pack fill pour mix bake grill cover wrap surround dress "
    "decorate face peer gaze glance listen blow smoke relax enjoy try prepare attempt start begin "
    "stop stay remain appear seem include contain feature display line top overlook attach connect "
    "tie park drag tow ram knock strike bounce toss launch duck dodge block guard protect defend "
    "attack shake nuzzle snuggle cuddle gallop trot graze drool pant yawn yell scream shout cry "
    "frown blink lounge recline nap converse chat discuss interact adjust examine inspect operate "
    "type text call check navigate maneuver emerge exit board descend ascend scale rappel compete "
    "score win lose shovel rake mow plow sweep mop peel slice chop spray squirt shine reflect "
    "light burn glow melt hide seek search find help assist teach learn want need like love "
    "exercise head rush hurry race step stomp tiptoe straddle mount dismount saddle herd shear "
    "milk brake steer handle wield hoist ponder think wonder"
)
NOUN_ING = _listed(
    "building ceiling clothing morning evening painting wedding railing crossing lightning "
    "covering clearing opening landing awning ring string thing wing king spring sling swing "
    "parking shopping-cart offering gathering outing setting fencing flooring paneling lettering "
    "carving drawing icing dressing pudding stuffing swimming-pool being duckling sibling"
)
NOUN_S = _listed(
    "grass glass dress class cross bus gas tennis canvas mattress chess compass lens pants jeans "
    "shorts scissors glasses goggles sunglasses stairs clothes headphones overalls binoculars "
    "leaves steps lines"
)
ENDED_LY = _listed("family fly lonely lovely ugly friendly elderly curly jelly belly early hilly")
ALSO_NOUNS = _listed(  # attributes that are things where no thing follows
    "orange square oval baby toddler adult male female glass metal stone plastic brick "
    "concrete leather gold silver top bottom left right middle front rear back half whole light "
    "dark open american indian asian african chinese military public first second young plaid "
    "short"
)
