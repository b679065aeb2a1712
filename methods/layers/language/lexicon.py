"""English word lists for kinds.py, written for captions of videos.

Words outside the lists are classified by their ending; without a known ending they are nouns. So the lists contain
words that would be misclassified by their ending, and only those nouns that are also verbs or look like verbs.
"""

DETERMINERS = """a an the this these those some any each every another no all both several many few most more less
other such what which whose my your his her its our their one two three four five six seven eight nine ten eleven
twelve hundred thousand first second third next last various different certain own same only half"""
PRONOUNS = """i you he she it we they me him us them himself herself itself themselves oneself yourself myself someone
somebody anyone anybody everyone everybody nobody something anything everything nothing who whom that there here
others eachother hers theirs mine ours"""
PREPOSITIONS = """of in on at by with without for from into onto to toward towards over under above below behind
beside besides between among amongst through throughout across along around about against near inside outside off out
up down during before after since until upon within via like as than beneath underneath past beyond per despite amid
atop alongside aboard versus vs except because if while when where whether although though unless so why how once
whilst"""
CONJUNCTIONS = "and or but nor & plus then"
BE = "is are was were be been being am isn aren wasn weren isnt arent 're 'm"
MODALS = "can could will would shall should may might must cannot 'll 'd"
DO = "do does did don doesn didn"
HAVE = "has have had having 've"
NEGATIONS = "not never 't t"
ADVERBS = """very too also just still again away back together apart forward forwards backward backwards here there
now later soon often always sometimes already almost even ever quite rather really well fast hard straight upside
ahead aside abroad outdoors indoors outside inside upstairs downstairs clockwise counterclockwise anticlockwise left
right maybe perhaps instead yet twice home online live alone around meanwhile afterwards elsewhere somewhere
everywhere how somehow eventually suddenly finally far long enough sideways nearby uphill downhill first high low loud
close once otherwise sort kind kinda aloud awhile overhead underwater"""
NOT_ADVERBS = """fly family lily butterfly belly jelly ally bully rally assembly supply reply italy july monopoly
doily gully trolley dolly teddy daily friendly lovely ugly silly elderly lonely lively early curly holy likely only"""
ADJECTIVES = """specific antique trendy controversial tense red green blue yellow purple orange white black pink cyan
brown gray grey gold golden silver blonde blond beige violet turquoise maroon dark light bright pale colorful
colourful colored coloured multicolored small large big little tiny huge giant tall short long wide narrow thick thin
fat skinny slim deep shallow high low heavy enormous massive mini old young new ancient modern elderly aged teenage
adult hot cold warm cool wet dry hard soft fast quick slow loud quiet silent clean dirty good bad great best worst
better worse nice fine beautiful pretty cute handsome ugly sexy attractive lovely gorgeous funny humorous serious
happy sad angry mad upset scared afraid excited tired bored surprised confused crazy silly stupid smart clever
intelligent popular famous rich poor strong weak brave shy proud calm sick ill healthy dead alive free full empty open
closed real fake true false different same similar strange weird odd special simple easy difficult complex complicated
important interesting boring exciting amazing awesome fantastic wonderful excellent perfect delicious tasty yummy
fresh raw ripe sweet sour salty bitter spicy crispy juicy foreign local national international american british indian
chinese japanese korean asian african european russian french german italian spanish mexican romanian turkish arabic
arab western eastern northern southern hispanic caucasian latin english irish greek pakistani thai brazilian canadian
australian female male human domestic wild rural urban public private professional amateur military musical political
medical digital electronic electric automatic acoustic animated olympic classic classical gothic medieval historical
religious wooden metallic plastic round flat square oval rectangular circular triangular sharp smooth rough curly
straight bald bearded naked nude topless shirtless barefoot blind deaf pregnant single married alone busy ready late
early recent final main major minor whole entire total certain sure able unable available possible likely unknown
various several general common rare usual typical normal regular extra additional virtual live fancy elegant formal
casual stylish messy neat shiny sparkly fluffy furry hairy muscular athletic aggressive dangerous safe scary creepy
spooky violent bloody gentle rude polite friendly mean kind nervous emotional romantic lonely drunk asleep awake
sleepy hungry thirsty fictional instructional educational informative helpful useful useless inner outer upper lower
middle front rear left right top bottom central distant overhead underwater outdoor indoor unique cartoonish pixelated
checkered checked striped frozen snowy sunny rainy windy foggy cloudy muddy sandy rocky icy grassy dusty rusty
homemade handheld solo lively blurry unlikely visible invisible opposite separate clear vacant bare"""
# Words that end in -ing or -ed and are nouns or adjectives rather than verbs
ING_NOUNS = """thing something anything everything nothing king ring wing string spring sibling setting recording
piercing ceiling building clothing wedding morning evening meeting painting drawing wrestling boxing pudding frosting
icing stuffing dressing lightning darling duckling earring sterling dumpling herring viking awning railing siding
blessing feeling gathering greeting hearing housing lining parking shopping skateboarding stocking wring bling beijing
clearing crossing gaming ending opening seasoning topping filling coating wiring writing warning sling offering
performing-arts swing"""
ING_ADJECTIVES = """interesting boring exciting amazing charming disgusting shocking stunning surprising annoying
confusing entertaining missing outstanding relaxing willing frightening depressing inspiring"""
ED_OTHERS = """red bed sled shed seed weed speed need feed deed hundred moped naked wicked sacred shred bred thread
breed bleed reed biped"""
VERBS = """abandon abuse accept accompany achieve act adapt add address adjust admire advise allow amuse analyze
announce apologize appear applaud apply approach argue arrange arrest arrive ask assemble assist attach attempt attend
attract audition avoid bake balance bark bathe beat become beg begin behave bend bite blend blink block blow boil
borrow bounce bow bowl braid break breathe bring browse brush build bump burn bury buy bust calculate call capture
caress carry carve catch celebrate change chant chase chat check cheer chew choose chop clap clean clear climb close
coat collect color comb combine come comfort commentate comment compare compete complain complete compose concentrate
conduct confront connect consist construct contain continue control converse convince cook cool copy count cover crack
crash crawl create cross cruise crush cry cuddle curl cut dance dash decide decorate deliver demonstrate depict
describe design destroy detail develop die dig dip direct disappear discipline discover discuss display dive divide do
don drag draw dress dribble drift drill drink drive drizzle drop drum dry dunk eat edit emerge emit encourage end
engage enjoy enter entertain erupt escape examine exchange execute exercise exhibit exit explain explode explore
express extract face fade fail fall fasten feature feed feel fetch fight figure fill film find finish fix flash flee
flicker flip float flow fly focus fold follow force form freeze fry gallop gather gaze gesture get give glide glow
glue go grab grate graze greet grill grind grow guess guide hammer hand handle hang happen hatch hear heat help hide
highlight hike hit hold hop host hover hug hunt hurt illustrate imitate include indicate inject inspect install
instruct interact interview introduce invite iron jog join joke juggle jump keep kick kill kiss knead kneel knit knock
know land laugh launch lay lead lean leap learn leave lick lie lift light line listen live load lock look loop lose
love lower make maneuver march mark massage match measure meet melt mention merge mix model morph mount mourn move mow
narrate navigate nod notice nurse observe offer open operate orbit order organize overtake pack paddle paint park
participate pass paste pat pause pay pedal peel perform pet pick pierce pile pinch pitch place plan plant play plead
point poke polish pop pose pour practice praise pray predict prepare present preserve press pretend produce promote
propose protect prove provide pull pump punch purchase push put question race raise ran rap reach react read receive
recite recommend record recount recover relax release remain remember remove repair repeat report represent rescue
resemble resist rest return reveal review revolve ride rinse rip rise roam roast rock roll romance rotate row rub run
rush sail sauté save saute say scare scoop score scramble scratch scream search season seat seduce see seem sell send
separate serenade serve set sew shake shape share sharpen shave shine shoot shop shout shove show showcase shower
shrink shut sift sign signal simmer sing sink sip sit skate ski skip slap sleep slice slide slip slow smack smash
smell smile smoke snap sneak snow soak soar solve sound speak speed spell spend spin splash split spray spread
sprinkle sprint squeeze squirm stab stack stage stamp stand stare start state stay steal steam steer step stick stir
stitch stop store strap stretch strike stroke stroll struggle strum study stumble style suggest surf surprise surround
survive sway sweep swim swing switch take talk tap taste teach tear tease tell tempt test thank think throw tie tilt
toss touch tour tow train transform travel treat trim trip trot try tumble turn twirl twist type unbox unfold unpack
unwrap use utter vanish view visit wade wait wake walk want warm warn wash watch water wave wear weave weep weigh
welcome whip whisk whisper win wink wipe work worry wrap wrestle write yell yawn zoom brighten darken flutter hum howl
skid sniff growl roar chirp hurl lunge parade spar tackle trace unveil utilize vlog parody mime mimic lecture preach
debate campaign protest honor award compliment insult threaten bully tickle groove shimmer windsurf skateboard
snowboard bicycle cycle steep roleplay belong believe care cause concern consider contest cost deal decrease depend
hate hope increase intend involve lack let like mean need object own prefer promise realize refer reflect relate
require seek suffer suppose target tend trust understand wish wonder ascend descend accelerate decelerate collide
spiral flap swap"""
IRREGULAR = """ate bent bit bitten blew blown bought bound broke broken brought built burnt came caught chose chosen
crept dealt drank drawn dreamt drew driven drove drunk dug eaten fallen fed fell felt flew flown forgot forgotten
fought found froze frozen gave given gone got gotten grew grown heard held hid hidden hung hurt kept knelt knew known
laid led left lent lit lost made meant met mown paid ran rang read ridden rode risen rose rung said sang sank sat sawn
seen sent sewn shaken shone shook shot shown shrank shrunk slept slid sold sought spent spoke spoken spun stolen stood
stole stuck struck sung sunk swam swept swum swung taken taught thought threw thrown told took tore torn understood
undone went woke won wore worn wound wove woven wrote written overtook overtaken became begun began flung leapt sprang
fled goes does did done lies dies ties vies lying dying tying vlogged"""
# Base forms of verbs that are also nouns, as are their -s forms; the preceding words decide which
NOUN_OR_VERB = """highlight act address answer attack attempt audition balance bake bark beat bite blend block blow
bow bowl braid break brush bump burn call care catch cause change chant chase chat check cheer clap clip close coat
color comb comment concern contest control cook copy cost count cover crack crash crawl cross cruise cry curl cut
cycle dance dash deal debate design detail die dig dip discipline display dive do drag draw dress drift drill drink
drive drop drum dunk end exercise exhibit exit experience experiment extract face fall feature feed feel fight figure
fill film finish fish fix flash flip float flow fly focus fold force form frame fry gesture glow glue grill groove
guess guide hammer hand handle heat help hike hit hold honor hop hope host howl hug hum hunt hurt increase insult
interview iron jog joke jump kick kill kiss knit knock land laugh launch layer lead leap lecture lick lie lift light
like line live load lock look loop love march mark massage match mean measure milk mime mix model mount move need
nurse object offer orbit order own pack paddle paint parade park parody pass paste pat patch pause pay pedal peel pet
pick pile pinch pitch place plan plant play point polish pop pose post practice present press produce promise protest
pump punch purchase push question race rain raise rap reach record release repair report rescue rest return review
ride ring rip rise roast rock roll romance row rub run rush sail save scare score scratch scream screen search season
seat set shake shape share shave shine shop shot shout shovel show shower sign signal sing sink sip skate ski skip
slap sleep slice slide slip smack smash smell smile smoke snap snow sound spar speed spell spin spiral splash split
spray spread sprint stack stage stamp stand stare start state stay steam step stick stir stitch stop store strap
stream stretch strike stroke stroll struggle study style surf surprise sweep swim swing switch tackle tag talk tap
target taste tear test thank tie tilt time tip toss touch tour tow trace track trade train travel treat trick trim
trip trot trust try turn twirl twist type use view visit vlog wait wake walk want wash watch water wave welcome whip
whisper win wink wish wonder work worry wrap yawn yell zoom battle bat bicycle bike book box brand bridge button camp
can chain challenge charge chart circle coach cream crowd cup demo dish double dust echo fan fence field fire flap
flood flower gallop gas gift goal glance grade grip group hook jam jet judge kid knife label lap letter level log mail
man map mask master mind mirror mouse nail name note number oil outfit page paper part party pattern peak phone photo
photograph picture piece pin pipe plane plate pocket poll pool pot power program puzzle rank rate river rope rule
sample sand school scoop seal sketch skateboard snack snowboard soap sort space spice spot star steer storm string
stunt subject suit table tape team text tire title toast tool top torch toy trail trap truck tube tune vacuum value
video voice wall weather wheel wind wing word yard"""
# Words of NOUN_OR_VERB that are nouns in captions, unless the context requires a verb ("to book a", "they book a")
MOSTLY_NOUNS = """highlight bat bicycle book bowl box brand bridge button camp can care chain chart circle clip coat
color cream cup demo detail dish dust experience experiment field figure fire flower form gift goal glance grade grip
group hand iron jam jet kid knife label lap layer letter level light line log mail man map mask master milk model
mouse nail name note number nurse object oil outfit page paper park part party patch pattern peak phone photo
photograph picture piece pin pipe plane plant plate pocket poll pool pot power press program puzzle rate ring river
rock rope rule sand school screen seal seat season shovel sign skateboard snack snowboard soap space spice stage stamp
star state steam stick storm strap stream string stunt style subject suit table tag tape target team text time tire
title tool top torch toy trail train truck tube tune vacuum value video view voice wall water weather wave wheel wind
wing word yard"""
IRREGULAR_PLURALS = "people men women children kids police cattle sheep feet teeth mice geese guys crew"
# Words after which an adverb is a noun: "the left", "her back"
ARTICLES = "the a an his her their its my your our this"
SUBJECTS = "i you he she it we they who that which someone somebody everyone everybody"
SINGULAR_SUBJECTS = "this that which one another each what"
CLAUSES = "as while when if because before after how who that which where since until what than"
UNINFLECTED = "put set cut hit shut read hurt spread beat run come split burst cast become quit"
HUMAN_ADJECTIVES = "male female adult blonde brunette"
PLACES = "top bottom front rear middle square"
SINGULAR_IN_S = "news series bus gas tennis sports gymnastics politics minutes chess lens bass plus circus virus"
